//! The part of sysfs that libibverbs reads: a tree of files that `SYSFS_PATH` names.
//!
//! Knows: the files. Must not know: what a NIC is.

use std::io;
use std::path::{Path, PathBuf};

use crate::counters;

/// ConnectX-7, of which the simulated NIC says that it is one.
const MODALIAS: &str = "pci:v000015B3d00001021sv000015B3sd00000041bc02sc00i00";

/// The name of NIC number `index`.
pub(crate) fn device_name(index: usize) -> String {
    format!("mlx5_{index}")
}

/// What a tree's name begins with; its process follows.
const PREFIX: &str = "warpverbs-sim-";

/// Removes trees that processes left behind which were killed.
fn sweep(parent: &Path) {
    let left = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(process, _)| process.parse::<u32>().ok());
        process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
    };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(left) {
        let _ = std::fs::remove_dir_all(entry.path());
    }
}

/// Writes the tree for so many NICs into a new folder in `parent`, and returns the folder.
pub(crate) fn write(parent: &Path, nics: usize) -> io::Result<PathBuf> {
    sweep(parent);
    let process = std::process::id();
    let (root, _) = (0..u32::MAX)
        .map(|attempt| parent.join(format!("{PREFIX}{process}-{attempt}")))
        .map(|root| (root.clone(), std::fs::create_dir(&root)))
        .find(
            |(_, made)| !matches!(made, Err(error) if error.kind() == io::ErrorKind::AlreadyExists),
        )
        .ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))
        .and_then(|(root, made)| made.map(|()| (root, ())))?;
    let file = |path: String, text: &str| {
        let path = root.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, format!("{text}\n"))
    };
    file("class/infiniband_verbs/abi_version".into(), "6")?;
    for index in 0..nics {
        let name = device_name(index);
        let verbs = format!("class/infiniband_verbs/uverbs{index}");
        file(format!("{verbs}/ibdev"), &name)?;
        // /dev/null's, which stands for the device's file.
        file(format!("{verbs}/dev"), "1:3")?;
        file(format!("{verbs}/abi_version"), "1")?;
        let device = format!("class/infiniband/{name}");
        file(format!("{device}/node_type"), "1: CA")?;
        file(
            format!("{device}/node_guid"),
            &format!("0200:00ff:fe00:{:04x}", index + 1),
        )?;
        file(format!("{device}/hca_type"), "MT4129")?;
        file(format!("{device}/board_id"), "SIM0000000001")?;
        file(format!("{device}/fw_ver"), crate::device::FIRMWARE_TEXT)?;
        file(format!("{device}/device/modalias"), MODALIAS)?;
        file(format!("{device}/device/vendor"), "0x15b3")?;
        file(format!("{device}/device/device"), "0x1021")?;
        file(format!("{device}/ports/1/pkeys/0"), "0xffff")?;
        for counter in counters::names() {
            file(format!("{}/{counter}", counters::folder(&name)), "0")?;
        }
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_nic_has_its_files() {
        let parent = std::env::temp_dir();
        // Of a process that cannot be: numbers end at 2^22.
        let left = parent.join("warpverbs-sim-4194305-0");
        std::fs::create_dir_all(left.join("class")).unwrap();
        let root = super::write(&parent, 2).unwrap();
        assert!(!left.exists());
        let other = super::write(&parent, 1).unwrap();
        assert_ne!(root, other);
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("class/infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert_eq!(read("class/infiniband/mlx5_1/ports/1/pkeys/0"), "0xffff\n");
        for folder in [root, other] {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
