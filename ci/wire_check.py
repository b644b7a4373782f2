"""The part of ci/wire-check that reads the table, makes a C program of it, and judges what the program prints.

usage: wire_check.py TEMP_DIR LINUX_MLX5_INCLUDE_DIR MLX5DV_H; the table is TEMP_DIR/table.
"""

import pathlib
import re
import subprocess
import sys

# Answers whose length depends on the request: the header's structure is longer than what every answer has.
VARIABLE_LENGTH = {"mlx5_ifc_query_hca_cap_out_bits", "mlx5_ifc_query_qp_out_bits"}
# Answers that end in a list whose entries the header does not count: the wire's structure has one of them.
ENDS_IN_LIST = {"mlx5_ifc_query_hca_vport_gid_out_bits", "mlx5_ifc_query_hca_vport_pkey_out_bits"}

# Structures of the table that the kernel's headers do not have.
PREAMBLE = """
#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <infiniband/mlx5dv.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#define BIT(n) (1u << (n))
#define BIT_ULL(n) (1ull << (n))
#define DECLARE_FLEX_ARRAY(type, name) struct { struct { } empty_##name; type name[]; }
#include "mlx5_ifc.h"

static void row(int line, long offset, long width) { printf("%d %ld %ld\\n", line, offset, width); }

/* First set bit and number of set bits of n bytes, most significant bit of byte 0 first; -1 if they are not adjacent. */
static void probed(int line, const void *bytes, int n)
{
    const unsigned char *b = bytes;
    long first = -1, last = -1, count = 0;
    for (long i = 0; i < n * 8l; i++) {
        if (b[i / 8] & (0x80 >> (i % 8))) {
            if (first < 0) first = i;
            last = i;
            count++;
        }
    }
    row(line, last - first + 1 == count ? first : -1, count);
}

#define CTRL(line, pi, opcode, opmod, qp, ds) do { \\
    struct mlx5_wqe_ctrl_seg seg; \\
    memset(&seg, 0, sizeof seg); \\
    mlx5dv_set_ctrl_seg(&seg, pi, opcode, opmod, qp, 0, ds, 0, 0); \\
    probed(line, &seg, sizeof seg); \\
} while (0)

/* Which bits of a CQE a getter of mlx5dv.h depends on. */
#define CQE(line, getter) do { \\
    unsigned char seen[64]; \\
    memset(seen, 0, sizeof seen); \\
    for (int i = 0; i < 512; i++) { \\
        struct mlx5_cqe64 cqe; \\
        memset(&cqe, 0, sizeof cqe); \\
        ((unsigned char *)&cqe)[i / 8] = 0x80 >> (i % 8); \\
        if (getter(&cqe)) seen[i / 8] |= 0x80 >> (i % 8); \\
    } \\
    probed(line, seen, sizeof seen); \\
} while (0)
"""

# Fields that mlx5dv.h has no member for, but a function that writes or reads them.
PROBES = {
    ("mlx5_wqe_ctrl_seg", "pi"): "CTRL({line}, 0xffff, 0, 0, 0, 0)",
    ("mlx5_wqe_ctrl_seg", "opcode"): "CTRL({line}, 0, 0xff, 0, 0, 0)",
    ("mlx5_wqe_ctrl_seg", "opmod"): "CTRL({line}, 0, 0, 0xff, 0, 0)",
    ("mlx5_wqe_ctrl_seg", "qp_num"): "CTRL({line}, 0, 0, 0, 0xffffff, 0)",
    ("mlx5_wqe_ctrl_seg", "ds"): "CTRL({line}, 0, 0, 0, 0, 0xff)",
}
for cqe in ("mlx5_cqe64", "mlx5_err_cqe"):
    for field in ("opcode", "format", "se", "owner"):
        PROBES[cqe, field] = "CQE({line}, mlx5dv_get_cqe_%s)" % field


def c_statement(line, struct, field):
    """The C statement that prints the header's offset and width of a field."""
    unit = 1 if struct.startswith("mlx5_ifc_") else 8  # bit structures have a byte for each bit
    if field == "sizeof":
        return f"row({line}, 0, {unit}l * sizeof(struct {struct}))"
    if (struct, field) in PROBES:
        return PROBES[struct, field].format(line=line)
    member = lambda name: f"((struct {struct} *)0)->{name}"
    offset = lambda name: f"{unit}l * offsetof(struct {struct}, {name})"
    part = re.fullmatch(r"(\w+)\[(\d+):(\d+)\]", field)
    if part:  # bits of a big-endian member
        name, high, low = part[1], int(part[2]), int(part[3])
        return f"row({line}, {offset(name)} + {unit}l * sizeof({member(name)}) - 1 - {high}, {high - low + 1})"
    first, _, last = field.partition("..")
    last = last or first
    return f"row({line}, {offset(first)}, {offset(last)} + {unit}l * sizeof({member(last)}) - {offset(first)})"


def compile_and_run(tmp, include, statements):
    """Runs the program; returns its rows, and the lines of fields or structures that the headers do not have."""
    absent = set()
    for attempt in ("find what is absent", "build"):
        source = [PREAMBLE, "int main(void)", "{"]
        for line, statement in statements.items():
            if line not in absent:
                source += [f'#line {line} "table"', f"    {statement};"]
        source += ["    return 0;", "}"]
        (tmp / "check.c").write_text("\n".join(source))
        compiler = subprocess.run(
            ["gcc", "-fmax-errors=0", "-I", include, "-o", tmp / "check", tmp / "check.c"],
            capture_output=True,
            text=True,
        )
        if compiler.returncode == 0:
            break
        messages = re.findall(r"^table:(\d+):\d+: error: (.*)$", compiler.stderr, re.M)
        # A bit-field has no address to compare: the header cannot say more of it than its name.
        absence = ("has no member", "undefined type", "incomplete type", "bit-field")
        missing = {int(line) for line, text in messages if any(reason in text for reason in absence)}
        if attempt == "build" or not missing:
            sys.exit(f"wire-check: the C program does not compile:\n{compiler.stderr}")
        absent |= missing
    rows = subprocess.run([tmp / "check"], capture_output=True, text=True, check=True).stdout
    return {int(a): (int(b), int(c)) for a, b, c in (row.split() for row in rows.splitlines())}, absent


def number(text):
    """The value of an expression of numbers, shifts and alternatives; None for any other."""
    text = text.strip()
    return eval(text) if re.fullmatch(r"(?:0[xX][0-9a-fA-F]+|\d+|<<|\||[ ()])+", text) else None


def constants_of(paths):
    """The MLX5_*, IB_* and ETH_P_* enumerators and macros of the headers, each with the set of values that it has."""
    values = {}
    for path in paths:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        found = [(name, number(value)) for name, value in re.findall(r"^[ \t]*#define[ \t]+((?:MLX5|ETH_P)_\w+)[ \t]+(.+)$", text, re.M)]
        for body in re.findall(r"\benum\s*\w*\s*\{([^}]*)\}", text):
            following = 0
            for entry in body.split(","):
                name, given, value = (part.strip() for part in entry.partition("="))
                if given:
                    following = number(value)
                if name:
                    found.append((name, following))
                    following = None if following is None else following + 1
        for name, value in found:
            if value is not None and name.startswith(("MLX5_", "IB_", "ETH_P_")):
                values.setdefault(name, set()).add(value)
    return values


def main():
    tmp, linux, mlx5dv = (pathlib.Path(arg) for arg in sys.argv[1:4])
    fields, constants = {}, {}
    for line, text in enumerate((tmp / "table").read_text().splitlines(), 1):
        if text.startswith("constant "):
            _, name, value = text.split()
            constants[name] = int(value)
        else:
            struct, field, offset, width, cited = text.split(" ", 4)
            fields[line] = struct, field, int(offset), int(width), cited

    rows, absent = compile_and_run(tmp, linux, {n: c_statement(n, f[0], f[1]) for n, f in fields.items()})

    print(f"mlx5_ifc.h: {linux}/mlx5_ifc.h\nmlx5dv.h:   {mlx5dv}\n")
    compared, bad, cited_only = 0, [], []
    for line, (struct, field, offset, width, cited) in fields.items():
        if line in absent:
            if field == "sizeof" or cited != "-":
                cited_only.append((struct, field, offset, width, cited))
            else:
                bad.append(f"{struct}.{field} is in no header and has no citation")
            continue
        theirs = rows[line]
        equal = theirs == (offset, width)
        if field == "sizeof" and struct in VARIABLE_LENGTH:
            equal = theirs[1] >= width
        if field == "sizeof" and struct in ENDS_IN_LIST:
            equal = theirs[1] < width
        print(f"{'ok ' if equal else 'BAD'} {struct}.{field}: wire {offset:#x}+{width}, header {theirs[0]:#x}+{theirs[1]}")
        compared += 1
        if not equal:
            bad.append(f"{struct}.{field}: wire {offset:#x}+{width}, header {theirs[0]:#x}+{theirs[1]}")

    rdma = [linux / "../../rdma/ib_pack.h", linux / "../../rdma/ib_verbs.h"]
    ethernet = pathlib.Path("/usr/include/linux/if_ether.h")
    known = constants_of([*sorted(linux.glob("*.h")), mlx5dv, *rdma, ethernet])
    constants_compared = 0
    for name, value in constants.items():
        theirs = known.get(name)
        if theirs is None:
            bad.append(f"constant {name} is in no header")
            continue
        constants_compared += 1
        equal = theirs == {value}
        print(f"{'ok ' if equal else 'BAD'} {name}: wire {value:#x}, header {', '.join(f'{v:#x}' for v in sorted(theirs))}")
        if not equal:
            bad.append(f"constant {name}: wire {value:#x}, header {sorted(theirs)}")

    print("\nNot in these headers, so not compared; documented elsewhere:")
    for struct, field, offset, width, cited in cited_only:
        if field == "sizeof":
            print(f"  {struct}: the whole structure")
        else:
            print(f"  {struct}.{field} {offset:#x}+{width}: {cited}")

    print(f"\n{compared} fields and {constants_compared} constants compared, {len(cited_only)} fields cited only")
    if compared == 0 or constants_compared == 0:
        bad.append("nothing was compared")
    for message in bad:
        print(f"wire-check: {message}", file=sys.stderr)
    sys.exit(1 if bad else 0)


main()
