//! A signal in the middle of a run: everything is closed in stages, and the report says so.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

/// A run that takes longer than any test may.
const ENDLESS: &str = "perf write-bw --size 64 --iters 1000000000";

/// The command, running, with what it says on stderr.
struct Running {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Running {
    /// Starts it and waits until its kernel was launched.
    fn launched(args: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_warpverbs"))
            .args(args.split_whitespace())
            .env("RUST_LOG", "warpverbs=debug")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, said };
        running.until("launched");
        running
    }

    /// Reads until a line contains this, and returns that line.
    fn until(&mut self, word: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.said.read_line(&mut line).unwrap() > 0,
                "no {word:?} in: {all}"
            );
            if line.contains(word) {
                return line;
            }
            all += &line;
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Exit code, standard output, and the last line on stderr.
    fn end(mut self) -> (i32, String, String) {
        let mut out = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut out).unwrap();
        let last = self.said.lines().map(Result::unwrap).last();
        let status = self.child.wait().unwrap();
        (status.code().unwrap(), out, last.unwrap_or_default())
    }
}

fn devices(run: &Value) -> Vec<&str> {
    let closed = run["closed"].as_array().unwrap().iter();
    closed
        .map(|closed| closed["device"].as_str().unwrap())
        .collect()
}

#[test]
fn a_signal_closes_in_stages_and_the_report_is_one_object() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut running = Running::launched(&format!("{ENDLESS} --json"));
        running.signal(signal);
        let said = running.until("closing in stages");
        assert!(said.contains(&format!("SIG{signal}")), "{said}");
        let (exit, out, last) = running.end();
        assert_eq!(exit, code, "{out}");
        assert_eq!(out.lines().count(), 1, "{out}");
        let run: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(run["interrupted"], format!("SIG{signal}"));
        assert_eq!(run["verified"], false);
        // The kernel heard of it, and said how far it was.
        let ops = run["ops"].as_u64().unwrap();
        let why = run["messages"][0].as_str().unwrap();
        assert_eq!(
            why,
            format!("interrupted by SIG{signal} after {ops} operations")
        );
        assert!(last.contains(why), "{last}");
        // NICs, then the GPU; nothing is left on any.
        assert_eq!(devices(&run).len(), 3, "{run}");
        assert_eq!(run["findings"], 0, "{run}");
        for closed in run["closed"].as_array().unwrap() {
            assert_eq!(closed["stage"], "destroyed", "{run}");
            assert_eq!(closed["retained"], Value::Array(vec![]), "{run}");
        }
        let released = |at: usize, kind: &str| run["closed"][at]["released"][kind].as_u64();
        for nic in [0, 1] {
            for (kind, count) in [("QP", 1), ("CQ", 1), ("MR", 1), ("PD", 1)] {
                assert_eq!(released(nic, kind), Some(count), "{kind}: {run}");
            }
        }
        assert_eq!(released(2, "stream"), Some(1), "{run}");
    }
}

#[test]
fn a_signal_closes_in_stages_and_the_report_is_a_table() {
    let running = Running::launched(&ENDLESS.replace("write-bw", "write-lat"));
    running.signal("INT");
    let (exit, out, _) = running.end();
    assert_eq!(exit, 130, "{out}");
    let lines: Vec<_> = out
        .lines()
        .filter(|line| line.contains(": destroyed; released: "))
        .collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[0].contains("1 QP"), "{out}");
    assert!(out.contains("! interrupted by SIGINT after "), "{out}");
}

fn committed_ptx() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ptx/sm_70.ptx")
}

/// The committed PTX with a write kernel that looks at nothing and never ends.
fn deaf() -> String {
    let text = fs::read_to_string(committed_ptx()).unwrap();
    let start = text.find(".entry wv_write_bw(").unwrap();
    let body = start + text[start..].find("\n{\n").unwrap() + 3;
    let end = body + text[body..].find("\n}").unwrap();
    // Asleep: time passes by leaps, but steps, of which a livelock has many, take their time.
    let sleeps = "AGAIN:\n\tnanosleep.u32 1000000;\n\tbra AGAIN;";
    format!("{}{sleeps}{}", &text[..body], &text[end..])
}

#[test]
fn a_kernel_that_does_not_hear_is_retained_and_a_second_signal_ends_the_wait() {
    let path = std::env::temp_dir().join(format!("warpverbs-{}-deaf.ptx", std::process::id()));
    fs::write(&path, deaf()).unwrap();
    let mut running = Running::launched(&format!("{ENDLESS} --json --ptx {}", path.display()));
    running.signal("INT");
    running.until("closing in stages");
    running.signal("INT");
    running.until("without waiting any longer");
    let (exit, out, _) = running.end();
    fs::remove_file(&path).unwrap();
    assert_eq!(exit, 130, "{out}");
    let run: Value = serde_json::from_str(&out).unwrap();
    // The near NIC: the kernel has its QP. Nothing is lost without a word.
    let near = &run["closed"][0];
    assert_eq!(near["stage"], "stopping", "{run}");
    let retained = near["retained"].as_array().unwrap();
    let qp = retained
        .iter()
        .find(|left| left["node"].as_str().unwrap().starts_with("QP 0x"))
        .unwrap_or_else(|| panic!("{run}"));
    assert!(
        qp["cause"].as_str().unwrap().contains("did not finish"),
        "{run}"
    );
    let set = qp["set"].as_array().unwrap();
    for kind in ["CQ", "UMEM", "doorbell page", "GPU memory", "PD"] {
        let stays = |node: &Value| node.as_str().unwrap().starts_with(kind);
        assert!(set.iter().any(stays), "{kind}: {run}");
    }
    // The far NIC had no part in it.
    assert_eq!(run["closed"][1]["stage"], "destroyed", "{run}");
    // The GPU: the kernel.
    let gpu = run["closed"][2]["retained"].as_array().unwrap();
    assert!(gpu.iter().any(|left| left["node"] == "launch"), "{run}");
    let messages = run["messages"].to_string();
    assert!(messages.contains("retained: QP 0x"), "{messages}");
}
