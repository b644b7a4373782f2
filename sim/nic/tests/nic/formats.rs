//! Bytes made and read by hand from the field tables of mlx5dv.h: an oracle that shares no code with the NIC.

use crate::rig::{ALL_RIGHTS, Rig, pattern};

#[test]
fn a_hand_made_wqe_gives_a_cqe_with_every_byte_known() {
    let rig = Rig::new();
    let cq = rig.cq(2);
    let (a, _b) = rig.pair(&cq, 4);
    let (source, target) = (rig.mr(64, 0), rig.mr(64, ALL_RIGHTS));
    rig.write(source.addr, &pattern(64, 5));
    let mut wqe = vec![0, 0, 0, 0x08];
    wqe.extend(((a.qpn << 8) | 3).to_be_bytes());
    wqe.extend([0, 0, 0, 0x08, 0, 0, 0, 0]);
    wqe.extend((target.iova + 2).to_be_bytes());
    wqe.extend(target.keys.rkey.to_be_bytes());
    wqe.extend([0; 4]);
    wqe.extend(33u32.to_be_bytes());
    wqe.extend(source.keys.lkey.to_be_bytes());
    wqe.extend((source.iova + 1).to_be_bytes());
    rig.write(a.ring, &wqe);
    // Doorbell record: word 1, big-endian. Doorbell: the WQE's first 8 bytes.
    rig.write(a.dbr, &[0, 0, 0, 0, 0, 0, 0, 1]);
    rig.mmio(a.uar, 0x800, &wqe[..8]).unwrap();
    rig.run();
    assert_eq!(rig.read(target.addr + 2, 33), pattern(64, 5)[1..34]);
    let cqe = rig.read(cq.ring, 64);
    assert_eq!(cqe[32..36], [0, 0x12, 0x34, 0x56], "user index");
    assert_eq!(cqe[44..48], [0; 4], "byte count says nothing for a WRITE");
    assert_eq!(cqe[56], 0x08, "opcode of the WQE");
    assert_eq!(cqe[57..60], a.qpn.to_be_bytes()[1..], "QP number");
    assert_eq!(cqe[60..62], [0, 0], "WQE counter");
    assert_eq!(
        cqe[63], 0x00,
        "requester, no format, owner 0 on the first lap"
    );
    assert_eq!(
        rig.read(cq.ring + 64, 192),
        [0xff; 192],
        "no other CQE is touched"
    );
    rig.assert_no_findings();
}

#[test]
fn an_error_cqe_by_hand() {
    let rig = Rig::new();
    let cq = rig.cq(2);
    let (a, _b) = rig.pair(&cq, 4);
    // An opcode that no NIC has.
    let mut wqe = vec![0, 0, 0, 0x7e];
    wqe.extend(((a.qpn << 8) | 1).to_be_bytes());
    wqe.extend([0; 8]);
    rig.write(a.ring, &wqe);
    rig.write(a.dbr, &[0, 0, 0, 0, 0, 0, 0, 1]);
    rig.mmio(a.uar, 0x800, &wqe[..8]).unwrap();
    rig.run();
    let cqe = rig.read(cq.ring, 64);
    assert_eq!(cqe[32..36], [0, 0x12, 0x34, 0x56], "user index");
    assert_eq!(cqe[54..56], [0x68, 0x02], "vendor syndrome, syndrome");
    assert_eq!(cqe[56], 0x7e, "opcode of the WQE");
    assert_eq!(cqe[57..60], a.qpn.to_be_bytes()[1..], "QP number");
    assert_eq!(cqe[63] & 0xf1, 0xd0, "requester error, owner 0");
    assert_ne!(
        cqe[63] & 0x0e,
        0,
        "bits beside the owner are set, as on record"
    );
    assert_eq!(rig.take_findings(), ["wqe-malformed"]);
}
