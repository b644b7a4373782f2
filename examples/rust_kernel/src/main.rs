//! Runs the kernel of `kernels/` on the simulated devices and looks at what arrived.

use std::time::Duration;

use warpverbs::driver::LaunchShape;
use warpverbs::driver::sim::World;
use warpverbs::wire::abi::Outcome;
use warpverbs::{
    Access, Context, CqForm, GpuContext, Module, Mr, Pd, QpConfig, QueuePair, Stream, View,
};

const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.ptx"));
const THREADS: u32 = 4;
const COUNT: u32 = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::builder().seed(1).build();
    let nic = Context::open(world.nic())?;
    let gpu = GpuContext::open(world.gpu())?;
    let pd = Pd::alloc(&nic)?;

    // Where the squares arrive: another value everywhere before.
    let squares: Vec<u64> = (0..u64::from(THREADS * COUNT)).map(|i| i * i).collect();
    let target = gpu.alloc_copy(&vec![0xee; squares.len() * 8], "target")?;
    let remote = Mr::register(&pd, &target, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // A QP a thread, each connected to itself.
    let config = QpConfig::default().cq_form(CqForm::Collapsed);
    let mut qps = Vec::new();
    for _ in 0..THREADS {
        let mut qp = QueuePair::create(&pd, &gpu, &config)?;
        qp.connect(&qp.local_info())?;
        qps.push(qp.export()?);
    }
    let handles: Vec<u8> = qps
        .iter()
        .flat_map(|qp| qp.handle().to_le_bytes())
        .collect();
    let handles = gpu.alloc_copy(&handles, "handles")?;
    let outcomes = gpu.alloc_copy(&[0; 4 * THREADS as usize], "outcomes")?;

    // The kernel's parameters as it declares them, each at a multiple of its size.
    let mut params = Vec::new();
    params.extend(handles.addr().to_le_bytes());
    params.extend(remote.remote().addr.to_le_bytes());
    params.extend(remote.remote().rkey.to_le_bytes());
    params.extend(COUNT.to_le_bytes());
    params.extend(outcomes.addr().to_le_bytes());

    let module = Module::load(&gpu, "kernels.ptx", PTX)?;
    let stream = Stream::create(&gpu)?;
    let view = qps
        .iter()
        .fold(View::new(), View::qp)
        .mr(&remote)
        .memory(&handles)
        .memory(&outcomes);
    // SAFETY: the parameters are those of `send_squares`, and `view` keeps what they name.
    let mut launch = unsafe {
        stream.launch(
            &module.kernel("send_squares")?,
            LaunchShape::linear(1, THREADS),
            &params,
            view,
        )?
    };
    launch.wait(Duration::from_secs(60))?;

    for (t, code) in outcomes.to_vec()?.chunks_exact(4).enumerate() {
        let outcome = Outcome::from_code(u32::from_le_bytes([code[0], code[1], code[2], code[3]]));
        if outcome != Outcome::Done {
            return Err(format!("thread {t} ended with {outcome:?}").into());
        }
    }
    let expected: Vec<u8> = squares
        .iter()
        .flat_map(|square| square.to_le_bytes())
        .collect();
    if target.to_vec()? != expected {
        return Err("wrong squares arrived".into());
    }
    println!(
        "{} squares sent by {THREADS} threads of {} and verified",
        squares.len(),
        gpu.name()
    );
    Ok(())
}
