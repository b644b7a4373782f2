//! Control-flow graph of a function, and immediate post-dominators.
//!
//! Knows: successors of each operation.
//! Must not know: what else operations do.
//!
//! Works on single operations instead of basic blocks: functions are small, and a join point is then an index. The
//! algorithm is that of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm"), on the reversed graph.

use crate::ir::{Instr, NO_PC, NO_REG, Op};

/// Successors of the operation at `at`; leaving the function is none.
fn successors(code: &[Instr], tables: &[Vec<u32>], at: usize, out: &mut Vec<u32>) {
    out.clear();
    let Some(instr) = code.get(at) else {
        return;
    };
    let guarded = instr.guard != NO_REG;
    let falls = match instr.op {
        Op::Bra { target } => {
            out.push(target);
            guarded
        }
        Op::Branch { target, .. } => {
            out.push(target);
            true
        }
        Op::BrxIdx { table, .. } => {
            out.extend(tables.get(table as usize).into_iter().flatten());
            guarded
        }
        Op::Ret | Op::Exit | Op::Trap | Op::FellOff => guarded,
        _ => true,
    };
    if falls && at + 1 < code.len() {
        out.push(at as u32 + 1);
    }
}

/// The immediate post-dominator of each operation, or [`NO_PC`] if that is the exit of the function or the exit cannot
/// be reached.
pub(super) fn post_dominators(code: &[Instr], tables: &[Vec<u32>]) -> Vec<u32> {
    let n = code.len();
    let exit = n;
    // Edges of the reversed graph: from the exit towards the entry.
    let mut preds: Vec<Vec<u32>> = vec![Vec::new(); n + 1];
    let mut succs: Vec<Vec<u32>> = Vec::with_capacity(n);
    let mut scratch = Vec::new();
    for at in 0..n {
        successors(code, tables, at, &mut scratch);
        let guarded = code[at].guard != NO_REG;
        let leaves = scratch.is_empty()
            || (guarded && matches!(code[at].op, Op::Ret | Op::Exit | Op::Trap | Op::FellOff));
        if leaves {
            scratch.push(exit as u32);
        }
        for succ in &scratch {
            if let Some(list) = preds.get_mut(*succ as usize) {
                list.push(at as u32);
            }
        }
        succs.push(scratch.clone());
    }
    // Postorder of the reversed graph from the exit, without recursion.
    let mut number = vec![NO_PC; n + 1];
    let mut order: Vec<u32> = Vec::with_capacity(n + 1);
    let mut seen = vec![false; n + 1];
    let mut stack: Vec<(usize, usize)> = vec![(exit, 0)];
    seen[exit] = true;
    while let Some((node, next)) = stack.pop() {
        match preds[node].get(next) {
            Some(pred) => {
                stack.push((node, next + 1));
                let pred = *pred as usize;
                if !seen[pred] {
                    seen[pred] = true;
                    stack.push((pred, 0));
                }
            }
            None => {
                number[node] = order.len() as u32;
                order.push(node as u32);
            }
        }
    }
    let mut idom = vec![NO_PC; n + 1];
    idom[exit] = exit as u32;
    let mut changed = true;
    while changed {
        changed = false;
        for node in order.iter().rev().skip(1) {
            let node = *node as usize;
            let mut new = NO_PC;
            for succ in &succs[node] {
                if idom[*succ as usize] == NO_PC {
                    continue;
                }
                new = if new == NO_PC {
                    *succ
                } else {
                    intersect(&idom, &number, new, *succ)
                };
            }
            if new != idom[node] {
                idom[node] = new;
                changed = true;
            }
        }
    }
    idom.truncate(n);
    for entry in &mut idom {
        if *entry == exit as u32 {
            *entry = NO_PC;
        }
    }
    idom
}

fn intersect(idom: &[u32], number: &[u32], mut a: u32, mut b: u32) -> u32 {
    while a != b {
        while number[a as usize] < number[b as usize] {
            a = idom[a as usize];
        }
        while number[b as usize] < number[a as usize] {
            b = idom[b as usize];
        }
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(op: Op) -> Instr {
        Instr {
            op,
            guard: NO_REG,
            negated: false,
        }
    }

    fn guarded(op: Op) -> Instr {
        Instr {
            op,
            guard: 0,
            negated: false,
        }
    }

    #[test]
    fn if_else_and_loop_join_after_themselves() {
        // 0: @p bra 3; 1: nop; 2: bra 4; 3: nop; 4: nop; 5: @p bra 4; 6: ret
        let code = [
            guarded(Op::Bra { target: 3 }),
            plain(Op::Nop),
            plain(Op::Bra { target: 4 }),
            plain(Op::Nop),
            plain(Op::Nop),
            guarded(Op::Bra { target: 4 }),
            plain(Op::Ret),
        ];
        assert_eq!(post_dominators(&code, &[]), [4, 2, 4, 4, 5, 6, NO_PC]);
    }

    #[test]
    fn an_early_return_has_no_join_and_an_endless_loop_none_at_all() {
        // 0: @p ret; 1: @p bra 3; 2: bra 2; 3: ret
        let code = [
            guarded(Op::Ret),
            guarded(Op::Bra { target: 3 }),
            plain(Op::Bra { target: 2 }),
            plain(Op::Ret),
        ];
        assert_eq!(post_dominators(&code, &[]), [NO_PC, 3, NO_PC, NO_PC]);
    }

    #[test]
    fn all_targets_of_an_indexed_branch_count() {
        let code = [
            plain(Op::BrxIdx {
                index: 0,
                table: 0,
                join: NO_PC,
            }),
            plain(Op::Bra { target: 3 }),
            plain(Op::Nop),
            plain(Op::Ret),
        ];
        assert_eq!(post_dominators(&code, &[vec![1, 2]])[0], 3);
    }
}
