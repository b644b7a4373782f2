#!/usr/bin/env bash
# What a ConnectX does where specifications are silent, compared with what the simulated NIC does. For anyone with a NIC and
# no GPU: rings lie in host memory, packets go from the port to itself. About 10 minutes; nothing on the machine is changed.
#
#   ci/nic.sh --nic mlx5_0 [--trials N] [--out DIR]
#
# Writes DIR/sim.json and DIR/<nic>.json (DIR is target/nic unless given) and fails where they differ in what was seen at all;
# counts and times may differ. `--nic sim` runs the simulated NIC twice. Please send both files along with the firmware version.
set -euo pipefail
cd "$(dirname "$0")/.."
nic='' trials=30 out=${CARGO_TARGET_DIR:-target}/nic
while (($#)); do
    case $1 in
    --nic) nic=${2:?--nic needs a device, such as mlx5_0, or sim} ;;
    --trials) trials=${2:?--trials needs a number} ;;
    --out) out=${2:?--out needs a directory} ;;
    *)
        echo "ci/nic.sh: unknown option $1; see the head of the script" >&2
        exit 2
        ;;
    esac
    shift 2
done
[[ -n $nic ]] || {
    echo 'ci/nic.sh: which NIC? --nic mlx5_0, or --nic sim' >&2
    exit 2
}
mkdir -p "$out"
probe() {
    cargo run --quiet --release --package warpverbs-cli -- probe --trials "$trials" "$@"
}
probe --nic sim >"$out/sim.json"
report=$out/$nic.json
[[ $nic != sim ]] || report=$out/sim-again.json
probe --nic "$nic" --against "$out/sim.json" >"$report"
echo "what $nic did is what the simulated NIC does: $report"
