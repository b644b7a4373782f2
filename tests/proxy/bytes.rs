//! What the NIC is told, byte by byte: the same as by a GPU thread in the mode `Db`.

use std::sync::{Arc, Mutex};

use super::common::{Options, PATIENCE};
use super::weak::{Left, Notes, Told, drivers};
use super::{close, launch, options};
use warpverbs::Doorbell;
use warpverbs::wire::abi::QpHandle;
use warpverbs::wire::doorbell::Doorbell as Rung;

fn run(options: &Options) -> (Vec<Told>, Vec<QpHandle>) {
    let notes: Arc<Mutex<Option<Notes>>> = Arc::default();
    let keep = notes.clone();
    let options = Options {
        wrap: Some(Arc::new(move |world| {
            let (nic, gpu, notes) = drivers(world, Left::Nothing);
            *keep.lock().unwrap() = Some(notes);
            (nic, gpu)
        })),
        ..options.clone()
    };
    let bench = options.bench().unwrap();
    let notes = notes.lock().unwrap().clone().unwrap();
    let before = notes.told().len();
    let report = launch(&bench, &options).unwrap().wait(PATIENCE);
    report.unwrap().check().unwrap();
    let told = notes.told().split_off(before);
    let handles = bench.qps.iter().map(|qp| {
        let mut bytes = [0; QpHandle::LEN];
        bench
            .world
            .gpu()
            .copy_from_device(&mut bytes, qp.handle())
            .unwrap();
        QpHandle::from_bytes(&bytes).unwrap()
    });
    let handles = handles.collect();
    close(bench);
    (told, handles)
}

/// One post at a time, across 2^16: what is expected is written out by hand.
#[test]
fn the_record_is_the_big_endian_send_word_and_the_doorbell_names_producer_and_qpn() {
    let (told, handles) = run(&Options {
        slots: 1,
        iters: 4,
        first_index: (1 << 16) - 2,
        ..options()
    });
    let [handle] = &handles[..] else { panic!() };
    assert_eq!(handle.qpn, 0x101, "the first QP of the simulated NIC");
    assert_eq!(
        (handle.doorbell, handle.dbr),
        (0, 0),
        "the GPU has no use for them"
    );
    // The send word is the second of the record, which stands a line behind what the GPU tells.
    let word = handle.proxy + 64 + 4;
    let page = match told[1] {
        Told::Doorbell(page, _) => page,
        Told::Record(..) => panic!("{told:?}"),
    };
    assert_eq!(
        told,
        [
            Told::Record(word, [0, 0, 0xff, 0xff]),
            Told::Doorbell(page, [0, 0xff, 0xff, 0, 0, 0x01, 0x01, 0]),
            Told::Record(word, [0, 0, 0, 0]),
            Told::Doorbell(page, [0, 0, 0, 0, 0, 0x01, 0x01, 0]),
            Told::Record(word, [0, 0, 0, 1]),
            Told::Doorbell(page, [0, 0, 1, 0, 0, 0x01, 0x01, 0]),
            Told::Record(word, [0, 0, 0, 2]),
            Told::Doorbell(page, [0, 0, 2, 0, 0, 0x01, 0x01, 0]),
        ]
    );
}

/// Each QP its own record and page; records, then doorbells, of one index; never back; all of them told.
#[test]
fn of_several_qps_each_is_told_by_its_own_record_and_page() {
    for first_index in [0, (1 << 16) - 9, (1 << 32) - 9] {
        let (told, handles) = run(&Options {
            qps: 3,
            threads: 3,
            iters: 25,
            first_index,
            ..options()
        });
        let mut pages = Vec::new();
        for handle in &handles {
            let word = handle.proxy + 64 + 4;
            let mut last = first_index;
            let mut mine = None;
            for pair in told.chunks_exact(2) {
                let [Told::Record(at, record), Told::Doorbell(page, doorbell)] = pair else {
                    panic!("{pair:?}");
                };
                let rung = Rung::parse(*doorbell).unwrap();
                let Rung::Producer { producer, qpn } = rung else {
                    panic!("{rung:?}");
                };
                assert_eq!(qpn == handle.qpn, *at == word);
                if *at != word {
                    continue;
                }
                assert_eq!(*record, u32::from(producer).to_be_bytes());
                let ahead = producer.wrapping_sub(last as u16);
                assert!((1..=7).contains(&ahead), "{last} {producer}");
                last += u64::from(ahead);
                assert_eq!(*mine.get_or_insert(*page), *page);
            }
            assert_eq!(last, first_index + 25);
            pages.push(mine.unwrap());
        }
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 3);
    }
}

/// The NIC sees the same producers and executes the same, whoever rings.
#[test]
fn a_nic_is_told_the_same_by_a_proxy_as_by_the_gpu() {
    for first_index in [0, (1 << 16) - 3] {
        let mut seen = Vec::new();
        for doorbell in [Doorbell::Db, Doorbell::Proxy] {
            let options = Options {
                doorbell,
                // One at a time, so that no two posts can become one doorbell.
                slots: 1,
                iters: 10,
                first_index,
                ..options()
            };
            let outcome = options.run().unwrap();
            outcome.expect_success();
            let stats = &outcome.stats;
            seen.push((stats.doorbells, stats.executed_total(), stats.cqes));
        }
        assert_eq!(seen[0], seen[1]);
        assert_eq!(seen[0].0, 10);
    }
}
