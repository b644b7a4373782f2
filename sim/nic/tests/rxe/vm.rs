//! The virtual machine: starts QEMU, and asks the guest's program.
//!
//! Knows: QEMU's command line, lines on a serial port.
//! Must not know: what is tested.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running guest.
pub(crate) struct Vm {
    qemu: Child,
    lines: BufReader<UnixStream>,
    folder: PathBuf,
}

/// A completion in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wc {
    pub(crate) qpn: u32,
    pub(crate) id: u64,
    /// `enum ibv_wc_status`
    pub(crate) status: u32,
    /// `enum ibv_wc_opcode`
    pub(crate) opcode: u32,
    pub(crate) bytes: u32,
    pub(crate) immediate: u32,
}

/// How long the guest may take to start, and to answer: an emulated processor on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

impl Vm {
    /// Boots the kernel and initial file system of `folder`.
    pub(crate) fn boot(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        for name in ["serial", "net-guest", "net-host"] {
            let _ = std::fs::remove_file(file(name));
        }
        let listener = UnixListener::bind(file("serial")).expect("a socket for the serial port");
        listener.set_nonblocking(true).unwrap();
        let path = |name: &str| file(name).display().to_string();
        let qemu = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
            .args([
                "-m",
                "384",
                "-machine",
                "pc",
                "-nodefaults",
                "-no-user-config",
            ])
            .args(["-display", "none", "-monitor", "none", "-no-reboot"])
            .args(["-serial", &format!("file:{}", path("console.log"))])
            .args([
                "-chardev",
                &format!("socket,id=port,path={}", path("serial")),
            ])
            .args(["-serial", "chardev:port"])
            .args([
                "-netdev",
                &format!(
                    "dgram,id=wire,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                    path("net-guest"),
                    path("net-host")
                ),
            ])
            .args([
                "-device",
                "virtio-net-pci,netdev=wire,mac=02:00:00:00:00:02,romfile=",
            ])
            .args(["-kernel", &path("vmlinux"), "-initrd", &path("initrd")])
            .args([
                "-append",
                "console=ttyS0 loglevel=4 panic=-1 mitigations=off",
            ])
            .stdin(Stdio::null())
            .spawn()
            .expect("qemu-system-x86_64 starts");
        let mut guard = Guard(Some(qemu));
        let begun = Instant::now();
        let port = loop {
            match listener.accept() {
                Ok((port, _)) => break port,
                Err(_) => assert!(begun.elapsed() < PATIENCE, "QEMU does not come up"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        port.set_nonblocking(false).unwrap();
        port.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut lines = BufReader::new(port);
        let mut line = String::new();
        let read = lines.read_line(&mut line);
        assert_eq!(line.trim(), "ready", "the guest does not come up: {read:?}");
        Self {
            qemu: guard.0.take().expect("it runs"),
            lines,
            folder: folder.to_owned(),
        }
    }

    /// Where the guest's frames come from, and where it sends them.
    pub(crate) fn sockets(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("net-host"), self.folder.join("net-guest"))
    }

    /// Asks, and panics if the guest refuses.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        let mut line = String::new();
        let done = writeln!(self.lines.get_mut(), "{command}")
            .and_then(|()| self.lines.read_line(&mut line));
        match line
            .trim_end()
            .strip_prefix("ok ")
            .or(line.trim_end().strip_prefix("ok"))
        {
            Some(answer) => answer.to_owned(),
            None => panic!("the guest, asked to {command:?}, says {line:?} ({done:?})"),
        }
    }

    /// Asks for numbers.
    #[track_caller]
    pub(crate) fn numbers<const N: usize>(&mut self, command: &str) -> [u64; N] {
        let answer = self.ask(command);
        let all: Vec<u64> = answer.split_whitespace().flat_map(str::parse).collect();
        all.try_into()
            .unwrap_or_else(|_| panic!("{command:?}: {answer:?}"))
    }

    /// The next `count` completions.
    #[track_caller]
    pub(crate) fn poll(&mut self, count: usize) -> Vec<Wc> {
        // In parts: an answer is one line.
        let mut all = vec![];
        while all.len() < count {
            let part = (count - all.len()).min(64);
            let answer = self.ask(&format!("poll {part} {}", PATIENCE.as_millis() / 2));
            let before = all.len();
            for text in answer.split(';').filter(|text| !text.trim().is_empty()) {
                let fields: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
                let [qpn, id, status, opcode, bytes, immediate] = fields[..] else {
                    panic!("{text:?} is no completion");
                };
                all.push(Wc {
                    qpn: qpn as u32,
                    id,
                    status: status as u32,
                    opcode: opcode as u32,
                    bytes: bytes as u32,
                    immediate: immediate as u32,
                });
            }
            assert!(
                all.len() - before == part,
                "the guest has only {} of {count} completions",
                all.len()
            );
        }
        all
    }

    /// A counter of rxe0.
    pub(crate) fn counter(&mut self, name: &str) -> u64 {
        let all = self.ask("counters");
        all.split_whitespace()
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no counter {name} in {all}"))
    }
}

/// Ends QEMU when the start fails.
struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut qemu) = self.0.take() {
            let _ = qemu.kill();
            let _ = qemu.wait();
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
