//! Which places a mode executes.
//!
//! Knows: how to make a kernel say so itself, by a store of its own before each place.
//! Must not know: what is changed there.

use std::cell::RefCell;

use warpverbs::driver::sim::Check;

use crate::modes::{Effort, Ending, Mode};
use crate::places::{Place, kernel_alone, places};

/// The places of the mode's kernel that some run of it with this ending executes.
pub(crate) fn reached(ptx: &str, mode: &Mode, ending: Ending, seeds: u64) -> Vec<Place> {
    let ptx = kernel_alone(ptx, mode.kernel);
    let all = places(&ptx, mode.kernel);
    let mut hit = vec![false; all.len()];
    for seed in 1..=seeds {
        let effort = Effort {
            iters: crate::ITERS,
            check: Check::Strict,
            scheduler: crate::SCHEDULERS[seed as usize % 2],
            seed,
            ending,
        };
        let hits = RefCell::new(None);
        let code = |gpu: &warpverbs::GpuContext| {
            let memory = gpu.alloc_copy(&vec![0; 4 * all.len()], "hits")?;
            let text = instrumented(&ptx, mode.kernel, &all, memory.addr());
            *hits.borrow_mut() = Some(memory);
            Ok(text)
        };
        let wrong = mode.run(&code, effort);
        assert_eq!(wrong, None, "{mode}, {effort:?}");
        let bytes = hits.take().unwrap().to_vec().unwrap();
        for (hit, word) in hit.iter_mut().zip(bytes.chunks_exact(4)) {
            *hit |= word[0] != 0;
        }
    }
    all.into_iter()
        .zip(hit)
        .filter(|(_, hit)| *hit)
        .map(|(place, _)| place)
        .collect()
}

/// Stores to `base + 4 * n` before the place `n`.
fn instrumented(ptx: &str, kernel: &str, all: &[Place], base: u64) -> String {
    let mut out = String::new();
    let mut places = all.iter().enumerate().peekable();
    let mut in_kernel = false;
    for (line, text) in ptx.lines().enumerate() {
        if text.contains(".entry") {
            in_kernel = text.contains(&format!("{kernel}("));
        }
        if let Some((n, _)) = places.next_if(|(_, place)| place.line == line) {
            let addr = base + 4 * n as u64;
            out += &format!(
                "mov.b64 %hit_at, {addr};\nst.relaxed.sys.global.b32 [%hit_at], %hit_one;\n"
            );
        }
        out += text;
        out.push('\n');
        if in_kernel && text == "{" {
            out += ".reg .b64 %hit_at;\n.reg .b32 %hit_one;\nmov.b32 %hit_one, 1;\n";
        }
    }
    assert!(
        places.next().is_none(),
        "places are in the order of their lines"
    );
    out
}
