//! The command line contract: what runs, what is refused, what scripts read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn warpverbs(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warpverbs"))
        .args(args.split_whitespace())
        .output()
        .unwrap()
}

/// Runs `perf ... --json`; the exit code and the one object on stdout.
fn perf(args: &str) -> (i32, Value) {
    let output = warpverbs(&format!("perf {args} --json"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{args}: {text}");
    (
        output.status.code().unwrap(),
        serde_json::from_str(&text).unwrap(),
    )
}

#[track_caller]
fn verified(args: &str) -> Value {
    let (code, run) = perf(args);
    assert_eq!(code, 0, "{args}: {run}");
    assert_eq!(run["verified"], true, "{args}: {run}");
    assert_eq!(run["errors"], 0, "{args}: {run}");
    assert_eq!(run["findings"], 0, "{args}: {run}");
    run
}

/// Exit code and the one line on stderr.
#[track_caller]
fn refused(args: &str) -> (i32, String) {
    let output = warpverbs(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{args}: {said}");
    (output.status.code().unwrap(), said)
}

fn committed_ptx() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ptx/sm_70.ptx")
}

/// A file that is gone at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("warpverbs-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn the_object_has_the_fields_that_scripts_read() {
    let run = verified("write-bw --iters 100");
    for field in [
        "test",
        "nic",
        "gpu",
        "size",
        "iters",
        "qps",
        "threads",
        "sharing",
        "doorbell",
        "cq",
        "check",
        "seed",
        "ops",
        "bytes",
        "verified",
        "errors",
        "findings",
        "seconds",
        "executed_instructions_per_op",
        "loads_per_op",
        "stores_per_op",
        "doorbells_per_op",
        "atomics_per_op",
        "fences_per_op",
        "ordered_ops_per_op",
        "poll_instructions_per_op",
        "spin_instructions_per_op",
    ] {
        assert!(!run[field].is_null(), "{field}");
    }
    assert_eq!(run["ops"], 100);
    assert_eq!(run["bytes"], 100 * 4096);
    assert!(run["nic"].as_str().unwrap().contains("sim"));
    assert!(run["gpu"].as_str().unwrap().contains("sim"));
}

#[test]
fn a_seed_replays_its_run_and_another_takes_another_way() {
    for args in [
        "write-bw --sharing gpu --threads 64 --qps 4 --cq collapsed --iters 64",
        "write-bw --sharing exclusive --cq ring --iters 500",
        "read-bw --sharing gpu --threads 16 --qps 2 --iters 50",
        "write-lat --iters 100",
    ] {
        let mut ways = Vec::new();
        for seed in [1, 2, 3] {
            let run = || {
                let mut run = verified(&format!("{args} --seed {seed}"));
                run.as_object_mut().unwrap().remove("seconds");
                run
            };
            let first = run();
            assert_eq!(first, run(), "{args} --seed {seed}");
            ways.push(first["simulated_ns"].clone());
        }
        ways.dedup();
        assert!(ways.len() > 1, "{args}: three seeds took {ways:?}");
    }
}

#[test]
fn a_post_costs_what_it_is_promised_to() {
    for cq in ["collapsed", "ring"] {
        for (sharing, most) in [
            ("exclusive --iters 2000", 60.0),
            ("gpu --threads 64 --qps 4 --iters 64", 90.0),
        ] {
            let run = verified(&format!("write-bw --cq {cq} --sharing {sharing}"));
            let post = run["executed_instructions_per_op"].as_f64().unwrap();
            let around = run["other_instructions_per_op"].as_f64().unwrap();
            assert!(post + around <= most, "{cq} {sharing}: {post} + {around}");
            assert_eq!(run["doorbells_per_op"], 1.0);
            assert_eq!(run["fences_per_op"], 2.0);
        }
    }
}

/// One run in each mode of each test, under the strict check where the mode allows it.
#[test]
fn every_test_runs_in_every_mode() {
    for test in ["write-bw", "read-bw", "send-bw", "atomic-rate", "post-rate"] {
        for mode in [
            "--cq collapsed",
            "--cq ring --doorbell early",
            "--doorbell bf --sharing gpu --threads 4 --qps 2",
            "--doorbell proxy",
            "--doorbell proxy --cq ring --sharing gpu --threads 4 --qps 2",
            "--doorbell nodbr --cq ring",
            "--doorbell nodbr --sharing gpu --threads 4 --qps 2",
            "--cq onerror --sharing gpu --threads 3",
            "--cq ring --sharing warp --threads 6 --qps 2",
            "--sharing cta --threads 5",
            "--cq onerror",
        ] {
            let run = verified(&format!("{test} --iters 40 --check strict {mode}"));
            assert_eq!(run["test"], test);
            // A work request that is pushed is one doorbell.
            if mode.contains("bf") {
                assert_eq!(run["doorbells_per_op"], 1.0, "{run}");
            }
            // The host's are no GPU thread's.
            if mode.contains("proxy") {
                assert_eq!(run["doorbells_per_op"], 0.0, "{run}");
            }
        }
        verified(&format!("{test} --iters 40 --check gpu --order gpu"));
        let run = verified(&format!(
            "{test} --iters 40 --gpu host --sharing cta --threads 3"
        ));
        assert!(run["executed_instructions_per_op"].is_null(), "{run}");
        for doorbell in ["proxy", "nodbr"] {
            verified(&format!(
                "{test} --iters 40 --gpu host --doorbell {doorbell} --sharing gpu --threads 3"
            ));
        }
    }
    for mode in [
        "--doorbell bf",
        "--doorbell proxy",
        "--doorbell nodbr --cq ring",
        "--cq onerror",
        "--doorbell early --cq ring",
    ] {
        verified(&format!("write-lat --iters 40 --check strict {mode}"));
    }
    verified("write-lat --iters 40 --check gpu --order gpu");
}

/// A warp that posts together rings once for all, and fences twice.
#[test]
fn a_warp_that_posts_together_rings_once() {
    let run = verified("post-rate --sharing warp --threads 32 --iters 50");
    assert_eq!(run["doorbells_per_op"], 1.0 / 32.0, "{run}");
    assert_eq!(run["fences_per_op"], 2.0 / 32.0, "{run}");
}

/// A kernel that adds something else, one that receives elsewhere, and one that writes something else are found out.
#[test]
fn wrong_sums_messages_and_words_are_noticed() {
    let text = fs::read_to_string(committed_ptx()).unwrap();
    for (test, kernel, from, to) in [
        // What is added; where messages are received; the last word of inline data.
        (
            "atomic-rate",
            "wv_atomic_rate_db",
            "_param_0+88]",
            "_param_0+64]",
        ),
        ("send-bw", "wv_send_bw_db", "_param_0+104]", "_param_0+32]"),
        (
            "post-rate",
            "wv_post_rate_db",
            "6510615553911029760",
            "6510615553911029761",
        ),
    ] {
        let start = text.find(&format!(".entry {kernel}(")).unwrap();
        let (before, rest) = text.split_at(start);
        let end = rest.find("\n}").unwrap();
        let (own, after) = rest.split_at(end);
        let changed = own.replace(from, to);
        assert!(own != changed, "{kernel} has no {from}");
        let file = Scratch::new(
            &format!("{kernel}.ptx"),
            &[before, &changed, after].concat(),
        );
        let size = if test == "post-rate" { "--size 28" } else { "" };
        let (code, run) = perf(&format!("{test} --iters 20 {size} --ptx {}", file.path()));
        assert_eq!(code, 1, "{run}");
        assert_eq!(run["verified"], false, "{run}");
    }
}

#[test]
fn rings_wrap_and_indices_pass_sixteen_bits() {
    for cq in ["collapsed", "ring"] {
        verified(&format!(
            "write-bw --depth 2 --size 1 --iters 500 --cq {cq}"
        ));
        verified(&format!(
            "write-bw --depth 16 --threads 8 --sharing gpu --iters 100 --cq {cq}"
        ));
        verified(&format!(
            "write-bw --depth 1024 --size 8 --iters 70000 --cq {cq}"
        ));
    }
}

#[test]
fn sizes_of_all_kinds_arrive() {
    for size in [1, 2, 7, 8, 9, 63, 4095, 4097, 100_000] {
        verified(&format!("write-bw --iters 40 --size {size}"));
        verified(&format!("read-bw --iters 40 --size {size} --cq ring"));
        verified(&format!("write-lat --iters 300 --size {size}"));
    }
}

#[test]
fn bad_usage_is_one_line_and_exit_code_2() {
    for (args, word) in [
        ("perf write-bw --size 0", "--size"),
        ("perf write-bw --size 1073741825", "--size"),
        ("perf write-bw --size -1", "-1"),
        ("perf write-bw --depth 100", "128 is the next"),
        ("perf write-bw --depth 0", "--depth"),
        ("perf write-bw --depth 65536", "--depth"),
        ("perf write-bw --iters 0", "--iters"),
        ("perf write-bw --qps 0", "--qps"),
        ("perf write-bw --threads 0", "--threads"),
        ("perf write-bw --threads 2", "--sharing gpu"),
        (
            "perf write-bw --sharing gpu --threads 65536 --size 1048576",
            "--threads",
        ),
        ("perf write-bw --sharing warp --threads 33", "at most 32"),
        (
            "perf write-bw --sharing cta --threads 9 --qps 2",
            "a multiple of --qps",
        ),
        ("perf write-bw --sharing cta --doorbell bf", "--doorbell db"),
        (
            "perf write-bw --cq onerror --doorbell proxy",
            "--doorbell db",
        ),
        ("perf write-bw --order gpu --doorbell nodbr", "--order sys"),
        (
            "perf write-bw --cq onerror --doorbell early",
            "--doorbell db",
        ),
        ("perf write-bw --cq onerror --depth 16", "--depth 32"),
        ("perf write-bw --order gpu --check strict", "--check gpu"),
        ("perf write-bw --order gpu --doorbell bf", "--order sys"),
        ("perf write-bw --order gpu --gpu host", "--order sys"),
        ("perf write-bw --order cpu", "--order"),
        ("perf atomic-rate --size 4", "give 8"),
        ("perf post-rate --size 29", "write-bw"),
        ("perf post-rate --sharing warp --cq onerror", "--cq ring"),
        ("perf post-rate --sharing cta --threads 128", "--depth"),
        ("perf write-lat --sharing gpu", "--sharing"),
        ("perf write-bw --seed x", "--seed"),
        ("perf write-bw --listen 7", "--listen"),
        ("perf write-lat --threads 3", "--threads"),
        ("perf recv-bw", "recv-bw"),
        ("perf", "<TEST>"),
        ("doctor", "doctor"),
    ] {
        let (code, said) = refused(args);
        assert_eq!(code, 2, "{args}: {said}");
        assert!(said.contains(word), "{args}: {said}");
    }
}

#[test]
fn an_unknown_device_is_one_line_and_exit_code_1() {
    for args in ["perf write-bw --nic mlx5_0", "perf write-bw --gpu 7"] {
        let (code, said) = refused(args);
        assert_eq!(code, 1, "{args}: {said}");
        assert!(said.contains("sim"), "{args}: {said}");
    }
}

#[test]
fn ptx_that_does_not_load_is_named_with_its_line() {
    let text = fs::read_to_string(committed_ptx()).unwrap();
    let unknown = text.replacen("fence.acq_rel.sys;", "fence.proxy.magic;", 1);
    assert_ne!(unknown, text);
    let line = 1 + unknown
        .lines()
        .position(|line| line.contains("fence.proxy.magic"))
        .unwrap();
    let file = Scratch::new("unknown.ptx", &unknown);
    for args in ["ptx check FILE", "perf write-bw --ptx FILE"] {
        let (code, said) = refused(&args.replace("FILE", file.path()));
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains(&line.to_string()) && said.contains("fence.proxy.magic"),
            "{said}"
        );
    }
    assert_eq!(refused("perf write-bw --ptx /no/such/file").0, 1);
    // Another device ABI.
    let other = text.replacen("wv_device_abi[4] = {2}", "wv_device_abi[4] = {9}", 1);
    assert_ne!(other, text);
    let file = Scratch::new("abi.ptx", &other);
    let (code, said) = refused(&format!("perf write-bw --ptx {}", file.path()));
    assert_eq!(code, 1);
    assert!(said.contains('9') && said.contains("ABI"), "{said}");
}

#[test]
fn the_embedded_ptx_is_listed_and_checks() {
    let listed = warpverbs("ptx list");
    let text = String::from_utf8(listed.stdout).unwrap();
    for kernel in ["wv_write_bw", "wv_read_bw", "wv_write_lat"] {
        assert!(text.contains(kernel), "{text}");
    }
    let checked = warpverbs(&format!("ptx check {}", committed_ptx().display()));
    assert!(checked.status.success());
}

/// Takes each 16-byte segment store out of the kernel in turn: whichever mode runs it must fail, and no mode may
/// report success over data that is not there.
#[test]
fn no_segment_store_can_be_left_out() {
    let text = fs::read_to_string(committed_ptx()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let start = lines
        .iter()
        .position(|line| line.contains(".entry wv_write_bw"))
        .unwrap();
    let end = lines[start + 1..]
        .iter()
        .position(|line| line.contains(".entry"))
        .map_or(lines.len(), |more| start + 1 + more);
    let stores: Vec<usize> = (start..end)
        .filter(|at| {
            // What the compiler stores by itself has no state space.
            lines[*at].trim_start().starts_with("st.global.v2.")
        })
        .collect();
    // Three segments in each of eight modes.
    assert!(stores.len() >= 24, "{}", stores.len());
    for store in stores {
        let mut mutant = lines.clone();
        mutant.remove(store);
        let file = Scratch::new(&format!("mutant{store}.ptx"), &mutant.join("\n"));
        let failed = ["exclusive", "gpu"].iter().any(|sharing| {
            ["collapsed", "ring"].iter().any(|cq| {
                ["db", "early"].iter().any(|doorbell| {
                    let (code, run) = perf(&format!(
                        "write-bw --iters 20 --size 64 --depth 8 --sharing {sharing} --cq {cq} --doorbell {doorbell} --ptx {}",
                        file.path()
                    ));
                    if code == 1 {
                        assert!(
                            run["verified"] == false || run["findings"].as_u64().unwrap() > 0,
                            "{run}"
                        );
                        assert!(!run["messages"].as_array().unwrap().is_empty(), "{run}");
                    }
                    code == 1
                })
            })
        });
        assert!(failed, "line {}: {}", store + 1, lines[store]);
    }
}

#[test]
fn a_kernel_that_posts_more_than_it_was_asked_to_is_stopped() {
    let text = fs::read_to_string(committed_ptx()).unwrap();
    // `iters` is loaded from where version and number of QPs stand: some 2^32.
    let endless = text.replace("[wv_write_bw_param_0+56]", "[wv_write_bw_param_0+0]");
    assert_ne!(endless, text);
    let file = Scratch::new("endless.ptx", &endless);
    let (code, run) = perf(&format!("write-bw --iters 10 --ptx {}", file.path()));
    assert_eq!(code, 1);
    assert_eq!(run["verified"], false);
    assert!(
        run["messages"][0]
            .as_str()
            .unwrap()
            .contains("10 were asked for"),
        "{run}"
    );
}

/// Standard output that takes nothing: a pipe whose reader left, as under `head`.
#[cfg(unix)]
#[test]
fn output_that_cannot_be_written_is_one_line_and_exit_code_1() {
    for args in [
        "perf write-bw --iters 10",
        "perf write-bw --iters 10 --json",
        "ptx list",
        "--help",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_warpverbs"))
            .args(args.split_whitespace())
            .stdout(writer)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args}: {said}");
        assert_eq!(said.lines().count(), 1, "{args}: {said}");
        assert!(said.contains("standard output"), "{args}: {said}");
    }
}

#[test]
fn frames_and_events_go_to_files_that_tools_open() {
    let pcap = Scratch::new("frames.pcap", "");
    let json = Scratch::new("trace.json", "");
    let text = Scratch::new("trace.txt", "");
    let common = "write-bw --iters 20 --size 5000";
    verified(&format!(
        "{common} --pcap {} --trace {}",
        pcap.path(),
        json.path()
    ));
    verified(&format!("{common} --trace {}", text.path()));
    let frames = fs::read(pcap.path()).unwrap();
    assert_eq!(
        frames[..4],
        [0xa1, 0xb2, 0x3c, 0x4d],
        "pcap, times in nanoseconds"
    );
    // Two packets of data for each WRITE, and an acknowledgement.
    assert!(frames.len() > 20 * (5000 + 3 * 60), "{}", frames.len());
    let trace: Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let count = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert!(count("doorbell") >= 20 && count("fetch") >= 20 && count("completion") >= 1);
    assert!(count("sent") >= 60 && count("sent") == count("arrived"));
    let lines = fs::read_to_string(text.path()).unwrap();
    assert!(
        lines
            .lines()
            .any(|line| line.contains("sim1") && line.contains("WriteLast")),
        "{lines}"
    );
}

#[test]
fn files_that_cannot_be_written_are_named() {
    for option in ["--pcap", "--trace"] {
        let (code, said) = refused(&format!("perf write-bw {option} /nonexistent/file"));
        assert_eq!(code, 1);
        assert!(said.contains("/nonexistent/file"), "{said}");
    }
}

#[test]
fn the_host_runs_the_native_kernels_and_counts_nothing() {
    for args in [
        "write-bw --gpu host --iters 500",
        "read-bw --gpu host --sharing gpu --threads 4 --qps 2 --cq ring --depth 16 --iters 200",
        "write-lat --gpu host --iters 200 --doorbell early",
    ] {
        let run = verified(args);
        assert_eq!(run["gpu"], "host");
        for figure in [
            "simulated_ns",
            "executed_instructions_per_op",
            "loads_per_op",
            "stores_per_op",
            "doorbells_per_op",
            "atomics_per_op",
            "fences_per_op",
        ] {
            assert!(run.as_object().unwrap().contains_key(figure) && run[figure].is_null());
        }
    }
}

#[test]
fn the_host_judges_no_memory_order_and_runs_no_ptx() {
    let ptx = committed_ptx();
    for options in [
        "--check strict".to_owned(),
        "--check gpu".to_owned(),
        format!("--ptx {}", ptx.display()),
    ] {
        let (code, said) = refused(&format!("perf write-bw --gpu host {options}"));
        assert_eq!(code, 2, "{said}");
        assert!(
            said.contains("--gpu sim") && said.contains("leave --"),
            "{said}"
        );
    }
}

#[test]
fn probes_tell_what_the_nic_did_and_a_report_can_be_compared() {
    let output = warpverbs("probe --trials 2");
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let probes = &report["probes"];
    let seen =
        |place: &Value| -> Vec<String> { place.as_object().unwrap().keys().cloned().collect() };
    // The published trials on ConnectX NICs (docs/hardware-facts.md).
    assert_eq!(
        seen(&probes["doorbell-alone"]),
        ["done 0x08, consumer 1, producer 1"]
    );
    for (cause, completions) in [
        ("local-2err", "0x05/0xf5 0x05/0xf9 0x05/0xf9 0x05/0xf9"),
        ("remote-access", "0x13/0x88 0x05/0xf9 0x05/0xf9 0x05/0xf9"),
        (
            "remote-invalid-request",
            "0x12/0x8a 0x05/0xf9 0x05/0xf9 0x05/0xf9",
        ),
        (
            "local-protection",
            "0x04/0x52 0x05/0xf9 0x05/0xf9 0x05/0xf9",
        ),
        ("peer-gone", "0x15/0x81 0x05/0xf9 0x05/0xf9 0x05/0xf9"),
    ] {
        assert_eq!(seen(&probes["syndromes"][cause]), [completions], "{cause}");
    }
    for cause in ["local-2err", "remote-access", "peer-gone"] {
        for (record, counts) in [
            ("written", "4 of 4, then 4"),
            ("not written", "0 of 4, then 4"),
        ] {
            let place = &probes["records"][format!("{cause}, record {record}")];
            assert_eq!(seen(&place["completions"]), [counts], "{cause}, {record}");
        }
    }
    assert_eq!(seen(&probes["cause-kept"]["collapsed"]), ["0x05/0xf9"]);
    assert_eq!(seen(&probes["cause-kept"]["ring"]), ["0x13/0x88"]);

    let mut other = report.clone();
    other["probes"]["opcodes"]["nop"] = "done 0x7f".into();
    let other = Scratch::new("probe.json", &other.to_string());
    let output = warpverbs(&format!("probe --trials 1 --against {}", other.path()));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("1 difference(s): probes: opcodes: nop"),
        "{said}"
    );
    let (code, said) = refused("probe --nic mlx5_0");
    assert!(
        code == 1 && said.contains("no NIC named \"mlx5_0\""),
        "{said}"
    );
    let (code, _) = refused("probe --against /does/not/exist");
    assert_eq!(code, 2);
}

/// `sim-env` with a library that is only a file: the loader complains, and the command runs all the same.
#[cfg(target_os = "linux")]
fn sim_env(options: &[&str], library: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warpverbs"))
        .arg("sim-env")
        .args(options)
        .env("WARPVERBS_SIM_LIB", library)
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn sim_env_becomes_the_command() {
    let library = Scratch::new("libwarpverbs_sim.so", "no library");
    let script = "echo \"$LD_PRELOAD|$WARPVERBS_SIM_WIRE|$WARPVERBS_SIM_NICS|$WARPVERBS_SIM_LINK|$WARPVERBS_SIM_DOORBELLS\"; \
                  command -v warpverbs; exit 7";
    let options = [
        "--wire",
        "/w",
        "--nics",
        "2",
        "--link",
        "infiniband",
        "--doorbells",
        "conformance",
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = sim_env(&options, library.path());
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let expected = format!("{}|/w|2|infiniband|conformance", library.path());
    assert_eq!(lines[0], expected);
    // Its folder comes first.
    assert_eq!(lines[1], env!("CARGO_BIN_EXE_warpverbs"));
}

#[cfg(target_os = "linux")]
#[test]
fn sim_env_without_library_or_command_says_what_to_do() {
    let output = sim_env(&["--", "true"], "/does/not/exist");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("cargo build -p warpverbs-sim-shim"), "{said}");
    let library = Scratch::new("libwarpverbs_sim.so.2", "no library");
    let output = sim_env(&["--", "no-such-command"], library.path());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("no-such-command"), "{said}");
    for options in [&[] as &[&str], &["--"], &["--nics", "0", "--", "true"]] {
        assert_eq!(sim_env(options, library.path()).status.code(), Some(2));
    }
}
