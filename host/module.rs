//! PTX modules and their kernels.
//!
//! Knows: that a module states the device ABI that it was built with.
//! Must not know: what a kernel does.

use std::sync::Arc;

use warpverbs_wire::abi;

use crate::driver::{GpuHandle, LaunchShape};
use crate::error::{Error, Refused, Result};
use crate::resource::GpuContext;
use crate::teardown::{Graph, Node, Pin, Shared, Slot, building};

/// A PTX module, loaded. Clones are the same module.
#[derive(Clone, Debug)]
pub struct Module {
    gpu: GpuContext,
    handle: GpuHandle,
    name: Arc<str>,
    node: Shared<ModuleNode>,
}

impl Module {
    /// Loads the embedded kernels that suit the GPU best.
    pub fn embedded(gpu: &GpuContext) -> Result<Self> {
        let compute_capability = gpu.driver().compute_capability();
        let ptx =
            crate::ptx::best_for(compute_capability).ok_or(Error::NoPtx { compute_capability })?;
        Self::load(gpu, ptx.name, ptx.text)
    }

    /// Loads a module. `name` names it in messages. It must have been built with the
    /// `warpverbs-device` of this version: its `wv_device_abi` says so.
    ///
    /// Loading runs nothing, so it is a safe call. A launch is where a module is trusted: [`crate::Stream::launch`] is `unsafe`
    /// and says what its caller vouches for; the provided kernels' launches are safe, and take a module's word that its
    /// kernels do what ours of that name do, as a program takes a linked library's. Nothing can check it: on a GPU whose
    /// threads reach process memory, PTX that breaks that word can do what a bad library can. Load what you would link.
    pub fn load(gpu: &GpuContext, name: &str, ptx: &str) -> Result<Self> {
        let _entered = gpu.enter()?;
        building(|| {
            let handle = gpu
                .driver()
                .load_module(ptx)
                .map_err(Error::driver("load the PTX module"))?;
            let module = Self {
                gpu: gpu.clone(),
                handle,
                name: name.into(),
                node: Shared::new(ModuleNode {
                    gpu: gpu.clone(),
                    handle,
                }),
            };
            let found = module.device_abi()?;
            if found != Some(abi::VERSION) {
                return Err(Error::ModuleAbi {
                    module: name.into(),
                    found,
                    expected: abi::VERSION,
                });
            }
            tracing::debug!(module = name, "module loaded");
            Ok(module)
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The GPU that it is loaded on.
    pub fn gpu(&self) -> &GpuContext {
        &self.gpu
    }

    /// Finds a kernel.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let handle = self
            .node
            .visit(|_| self.gpu.driver().kernel(self.handle, name))?
            .map_err(Error::driver("find the kernel"))?;
        Ok(Kernel {
            module: self.clone(),
            handle,
            name: name.into(),
        })
    }

    /// Unloads it. Busy while a kernel of it runs.
    pub fn close(self) -> Result<(), Refused<Self>> {
        self.node
            .close()
            .map_err(|error| Refused { error, value: self })
    }

    pub(crate) fn pin(&self) -> Result<Pin<ModuleNode>> {
        self.node.pin()
    }

    fn device_abi(&self) -> Result<Option<u32>> {
        let gpu = self.gpu.driver();
        let global = gpu
            .module_global(self.handle, abi::VERSION_SYMBOL)
            .map_err(Error::driver("find the module's wv_device_abi"))?;
        let Some((addr, 4)) = global else {
            return Ok(None);
        };
        let mut version = [0; 4];
        gpu.copy_from_device(&mut version, addr)
            .map_err(Error::driver("read the module's wv_device_abi"))?;
        Ok(Some(u32::from_le_bytes(version)))
    }
}

pub(crate) struct ModuleNode {
    gpu: GpuContext,
    handle: GpuHandle,
}

impl Node for ModuleNode {
    const NAME: &'static str = "module";

    fn number(&self) -> Option<u64> {
        Some(self.handle.0)
    }

    fn destroy(&self) -> Result<()> {
        self.gpu
            .undo("unload the module", |gpu| gpu.unload_module(self.handle))
    }

    fn graph(&self) -> &Graph {
        self.gpu.graph()
    }

    fn parents(&self) -> Vec<Arc<dyn Slot>> {
        Vec::new()
    }
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) module: Module,
    pub(crate) handle: GpuHandle,
    name: Arc<str>,
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many blocks of this shape can be resident together: the most that a cooperative launch
    /// can have.
    pub fn max_resident_blocks(&self, shape: LaunchShape) -> Result<u32> {
        let gpu = self.module.gpu.driver();
        self.module
            .node
            .visit(|_| gpu.max_resident_blocks(self.handle, shape))?
            .map_err(Error::driver("ask how many blocks can be resident"))
    }
}
