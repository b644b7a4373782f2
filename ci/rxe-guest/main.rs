//! Drives Linux's rdma_rxe inside a virtual machine: takes a command a line from a serial port, answers with a line each.
//!
//! Knows: verbs of the reliable connection service, and what the other end of the serial port may ask.
//! Must not know: what is tested, or who the peer is.

mod pattern;
mod verbs;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use verbs::{Connection, Mr, Mw, Qp, Request, Verbs};

/// Objects by the numbers under which the driver knows them.
struct Guest {
    verbs: Verbs,
    mrs: Vec<Mr>,
    windows: Vec<Mw>,
    qps: BTreeMap<u32, Qp>,
}

/// The words of a command, taken one by one.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl Words<'_> {
    fn text(&mut self) -> Result<&str, String> {
        self.0.next().ok_or_else(|| "a word is missing".to_owned())
    }

    fn number<T: TryFrom<u64>>(&mut self) -> Result<T, String> {
        let word = self.text()?;
        word.parse::<u64>()
            .ok()
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| format!("{word:?} is no such number"))
    }
}

impl Guest {
    fn mr(&self, words: &mut Words) -> Result<Mr, String> {
        let at: usize = words.number()?;
        self.mrs.get(at).copied().ok_or_else(|| "no MR".to_owned())
    }

    fn qp(&self, words: &mut Words) -> Result<Qp, String> {
        let number = words.number()?;
        self.qps
            .get(&number)
            .copied()
            .ok_or_else(|| "no QP".to_owned())
    }

    fn execute(&mut self, line: &str) -> Result<String, String> {
        let mut words = Words(line.split_whitespace());
        let words = &mut words;
        match words.text()? {
            // mr LEN -> number address lkey rkey
            "mr" => {
                let mr = self.verbs.register(words.number()?)?;
                self.mrs.push(mr);
                let number = self.mrs.len() - 1;
                Ok(format!("{number} {} {} {}", mr.addr, mr.lkey(), mr.rkey()))
            }
            // window -> number
            "window" => {
                self.windows.push(self.verbs.window()?);
                Ok((self.windows.len() - 1).to_string())
            }
            // bind QP ID WINDOW MR LEN -> rkey
            "bind" => {
                let qp = self.qp(words)?;
                let id = words.number()?;
                let window: usize = words.number()?;
                let window = *self.windows.get(window).ok_or("no window")?;
                let mr = self.mr(words)?;
                let key = self.verbs.bind(qp, id, window, mr, words.number()?)?;
                Ok(key.to_string())
            }
            // qp -> QPN
            "qp" => {
                let qp = self.verbs.qp()?;
                self.qps.insert(qp.number(), qp);
                Ok(qp.number().to_string())
            }
            // destroy QPN
            "destroy" => {
                let qp = self.qp(words)?;
                self.qps.remove(&qp.number());
                self.verbs.destroy(qp).map(|()| String::new())
            }
            // connect QP REMOTE_QPN IPV4 MTU PSN REMOTE_PSN TIMEOUT RNR_RETRY
            "connect" => {
                let qp = self.qp(words)?;
                let remote_qpn = words.number()?;
                let remote_gid = gid(words.text()?)?;
                let connection = Connection {
                    remote_qpn,
                    remote_gid,
                    gid_index: own_gid()?,
                    mtu: words.number()?,
                    psn: words.number()?,
                    remote_psn: words.number()?,
                    timeout: words.number()?,
                    rnr_retry: words.number()?,
                };
                self.verbs.connect(qp, &connection).map(|()| String::new())
            }
            // send QP ID OPCODE FLAGS ADDR LEN LKEY REMOTE_ADDR RKEY IMMEDIATE OPERAND OPERAND
            "send" => {
                let qp = self.qp(words)?;
                let request = Request {
                    id: words.number()?,
                    opcode: words.number()?,
                    flags: words.number()?,
                    local: (words.number()?, words.number()?, words.number()?),
                    remote: (words.number()?, words.number()?),
                    immediate: words.number()?,
                    operands: (words.number()?, words.number()?),
                };
                self.verbs.send(qp, &request).map(|()| String::new())
            }
            // receive QP ID ADDR LEN LKEY
            "receive" => {
                let qp = self.qp(words)?;
                let id = words.number()?;
                let local = (words.number()?, words.number()?, words.number()?);
                self.verbs.receive(qp, id, local).map(|()| String::new())
            }
            // poll COUNT MS -> (QPN ID STATUS OPCODE BYTES IMMEDIATE;)*
            "poll" => {
                let count: usize = words.number()?;
                self.poll(count, Duration::from_millis(words.number()?))
            }
            // fill MR AT LEN SALT
            "fill" => {
                let (mr, at, len) = (self.mr(words)?, words.number()?, words.number()?);
                mr.write(at, &pattern::bytes(at, len, words.number()?));
                Ok(String::new())
            }
            // check MR AT LEN SALT SOURCE: the bytes are those of a filled memory from SOURCE on
            "check" => {
                let (mr, at, len) = (self.mr(words)?, words.number()?, words.number()?);
                let salt = words.number()?;
                let expected = pattern::bytes(words.number()?, len, salt);
                let found = mr.read(at, len);
                match found.iter().zip(&expected).position(|(a, b)| a != b) {
                    None if found.len() == len => Ok("same".to_owned()),
                    at => Ok(format!("differs at {at:?}")),
                }
            }
            // word MR AT -> value
            "word" => {
                let (mr, at) = (self.mr(words)?, words.number()?);
                let bytes = mr.read(at, 8).try_into().map_err(|_| "outside")?;
                Ok(u64::from_le_bytes(bytes).to_string())
            }
            // set MR AT VALUE
            "set" => {
                let (mr, at) = (self.mr(words)?, words.number()?);
                mr.write(at, &words.number::<u64>()?.to_le_bytes());
                Ok(String::new())
            }
            // counters -> NAME=VALUE ...
            "counters" => Ok(counters()),
            other => Err(format!("{other:?} is no command")),
        }
    }

    fn poll(&mut self, count: usize, most: Duration) -> Result<String, String> {
        let begun = Instant::now();
        let mut answer = String::new();
        let mut seen = 0;
        while seen < count {
            match self.verbs.poll()? {
                Some(wc) => {
                    seen += 1;
                    answer.push_str(&format!(
                        "{} {} {} {} {} {};",
                        wc.qpn, wc.id, wc.status, wc.opcode, wc.bytes, wc.immediate
                    ));
                }
                None if begun.elapsed() > most => break,
                // The kernel's own work needs the processor.
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        Ok(answer)
    }
}

const GIDS: &str = "/sys/class/infiniband/rxe0/ports/1";

/// The GID of an IPv4 address.
fn gid(address: &str) -> Result<[u8; 16], String> {
    let address: std::net::Ipv4Addr = address.parse().map_err(|_| "no IPv4 address")?;
    Ok(address.to_ipv6_mapped().octets())
}

/// Index of the first IPv4-mapped RoCE v2 GID.
fn own_gid() -> Result<u8, String> {
    let is_it = |index: &u8| {
        let read = |what: &str| std::fs::read_to_string(format!("{GIDS}/{what}/{index}"));
        read("gids").is_ok_and(|gid| gid.starts_with("0000:0000:0000:0000:0000:ffff:"))
            && read("gid_attrs/types").is_ok_and(|kind| kind.trim() == "RoCE v2")
    };
    (0..16).find(is_it).ok_or_else(|| "no IPv4 GID".to_owned())
}

fn counters() -> String {
    let folder = format!("{GIDS}/hw_counters");
    let mut all: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let value = std::fs::read_to_string(entry.path()).ok()?;
            let name = entry.file_name().into_string().ok()?;
            Some(format!("{name}={}", value.trim()))
        })
        .collect();
    all.sort();
    all.join(" ")
}

fn serve(port: &Path) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut out = OpenOptions::new().write(true).open(port).map_err(text)?;
    let lines = BufReader::new(File::open(port).map_err(text)?).lines();
    let mut guest = match Verbs::open() {
        Ok(verbs) => Guest {
            verbs,
            mrs: vec![],
            windows: vec![],
            qps: BTreeMap::new(),
        },
        Err(error) => {
            return writeln!(out, "error {error}").map_err(text);
        }
    };
    writeln!(out, "ready").map_err(text)?;
    for line in lines {
        let line = line.map_err(text)?;
        if line.trim() == "quit" {
            break;
        }
        let answer = match guest.execute(&line) {
            Ok(answer) => format!("ok {answer}"),
            Err(error) => format!("error {error}"),
        };
        writeln!(out, "{answer}").map_err(text)?;
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let Some(port) = std::env::args_os().nth(1) else {
        eprintln!("usage: rxe-guest SERIAL_PORT");
        return std::process::ExitCode::FAILURE;
    };
    match serve(Path::new(&port)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rxe-guest: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
