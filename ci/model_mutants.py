#!/usr/bin/env python3
"""Breaks the simulated NIC in ways that a wrong NIC might be broken, one at a time, in a copy of the tree: the random verbs
sequences (`sim/nic/tests/model`) must fail for each. Takes some minutes: not part of every run.

    ci/model_mutants.py [NAME...]
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get('CARGO_TARGET_DIR', ROOT / 'target')).resolve()

# Name, file of sim/nic, what is there, what is put in its place.
MUTANTS = [
    ('an atomic that comes again is executed again', 'responder.rs',
     'if let Some((_, original)) = known.copied() {\n                self.answer(Answer::Original { psn, original });',
     'if let Some((_, original)) = known.copied() {\n                let _ = original;\n                let _ = self.take_atomic(packet);'),
    ('duplicates are not answered', 'responder.rs',
     'return self.take_duplicate(packet);', 'return;'),
    ('duplicates are executed', 'responder.rs',
     'return self.take_duplicate(packet);', 'let _ = self.execute(packet); return;'),
    ('a gap is not noticed', 'responder.rs',
     'if ahead > 0 {', 'if ahead > 1_000_000 {'),
    ('every fourth acknowledgement is left out', 'responder.rs',
     'self.answer(Answer::Ack { psn });\n                }\n                return;',
     'if psn.get() % 4 != 1 { self.answer(Answer::Ack { psn }); }\n                }\n                return;'),
    ('an acknowledgement covers a request more', 'answer.rs',
     'self.acknowledge(psn.next());', 'self.acknowledge(psn.next().next());'),
    ('a fence does not hold', 'requester.rs',
     'Fence::Fetching => earlier.any(Operation::is_fetching),', 'Fence::Fetching => false,'),
    ('a fence of a WQE without packets does not hold', 'requester.rs',
     '&& !self.holds_back(operation.fence, self.cursor.0)', ''),
    ('READ data is taken out of order', 'answer.rs',
     'if psn != oldest {\n            // Data before it is missing.', 'if false && psn != oldest {\n            // Data before it is missing.'),
    ('a wrong key is told as another error', 'answer.rs',
     'NakCode::RemoteAccess => REMOTE_ACCESS', 'NakCode::RemoteAccess => REMOTE_OPERATION'),
    ('repetition begins a packet late', 'requester.rs',
     'Some(at) => {\n                let packet = self', 'Some(at) => {\n                let psn = psn.next();\n                let packet = self'),
    ('an invalidated key stays good', 'responder.rs',
     'found.invalidated = true;', ''),
    ('a receive of an unfinished message is forgotten', 'responder.rs',
     'self.unfinished = Some(posted.counter);', 'let _ = posted;'),
    ('receives posted in ERR are not flushed', 'work.rs',
     'if state == QpState::Err && self.qp()', 'if false && state == QpState::Err && self.qp()'),
    ('a refusal raises no event', 'respond.rs',
     'self.raise(match code {', 'let _ = drop(match code {'),
    ('a message without receive takes two', 'receive.rs',
     'queue.consumer += 1;\n        let mut bytes', 'queue.consumer += 1 + (queue.consumer & 1);\n        let mut bytes'),
    ('a read-only key takes WRITEs', 'keys.rs',
     'Right::RemoteWrite => self.remote_write', 'Right::RemoteWrite => self.remote_write || self.remote_read'),
    ('the second piece of a message begins a byte early', 'transfer.rs',
     'offset: from - first,', 'offset: (from - first) ^ u64::from(first > 0 && from > first),'),
    ('flushes end after the first', 'flush.rs',
     'None => self.flushed(),', 'None => { let mut done = self.flushed(); if done.slot.index % 8 == 5 { done.outcome = Outcome::Silent; } done }'),
]


def main():
    copy = TARGET / 'model-mutants'
    shutil.rmtree(copy, ignore_errors=True)
    files = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard'], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith('fuzz/'):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    command = ['cargo', 'test', '--quiet', '--package', 'warpverbs-sim-nic', '--test', 'model']
    environment = {**os.environ, 'CARGO_TARGET_DIR': str(TARGET / 'model-mutants-target'), 'PROPTEST_MAX_SHRINK_ITERS': '0', 'MODEL_CASES': '6000', 'RUST_BACKTRACE': '0', 'RUSTFLAGS': '-Awarnings',
                   'PROPTEST_FAILURE_PERSISTENCE': 'off'}
    survivors = []
    wanted = sys.argv[1:]
    for name, file, before, after in [('nothing', 'lib.rs', '', ''), *MUTANTS]:
        if wanted and name not in wanted:
            continue
        path = copy / 'sim/nic' / file
        source = path.read_text()
        if before not in source:
            sys.exit(f'ci/model_mutants.py: {name}: {file} has no {before!r}')
        path.write_text(source.replace(before, after, 1) if before else source)
        build = subprocess.run([*command, '--no-run'], cwd=copy, env=environment, capture_output=True, text=True)
        if build.returncode:
            sys.exit(f'{name}: does not build:\n{build.stderr[-3000:]}')
        try:
            run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
            output, failed = run.stdout, run.returncode != 0
        except subprocess.TimeoutExpired:
            output, failed = 'Test failed: hangs', True
        why = next((line for line in output.splitlines() if line.startswith('Test failed: ')), 'panics' if failed else '')
        print(f'{"found" if failed else "NOT FOUND"}: {name}: {why[:150]}', flush=True)
        if failed == (name == 'nothing'):
            survivors.append(name)
        path.write_text(source)
    if survivors:
        sys.exit(f'ci/model_mutants.py: {survivors}')


main()
