//! Prints the table that `ci/wire-check` compares with the vendor's headers, one line a field:
//! `STRUCT FIELD OFFSET WIDTH CITATION`, in bits, and one line a constant: `constant NAME VALUE`.
//!
//! A field `sizeof` gives the structure's size. A citation of `-` means that the header itself has the field.

use warpverbs_wire::fields;
use warpverbs_wire::layout::Header;

fn main() {
    for layout in fields::all() {
        let name = match layout.header {
            Header::Mlx5Ifc => format!("mlx5_ifc_{}_bits", layout.name),
            _ => layout.name.to_owned(),
        };
        println!("{name} sizeof 0 {} -", layout.bits);
        for field in layout.fields {
            let cited = field.cited.or(layout.header.citation()).unwrap_or("-");
            println!(
                "{name} {} {} {} {cited}",
                field.name, field.offset, field.width
            );
        }
    }
    for (name, opcode) in fields::commands() {
        println!("constant MLX5_CMD_OP_{name} {opcode}");
    }
    for (name, value) in fields::constants().iter().copied().flatten() {
        println!("constant {name} {value}");
    }
}
