//! GPUs: memory, bandwidth and compute by catalog name.

use serde::Deserialize;
use std::sync::LazyLock;

/// A GPU type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Catalog name.
    pub name: String,
    /// Other names it goes by in benchmark files.
    pub aliases: Vec<String>,
    /// Full name.
    pub title: String,
    /// Total memory in MiB as CUDA reports it.
    pub memory_mib: u32,
    /// Memory bandwidth in GB/s.
    pub bandwidth_gb_s: f64,
    /// Dense BF16 TFLOP/s.
    pub bf16_tflops: f64,
    /// Dense FP8 TFLOP/s; `None` without FP8 units.
    pub fp8_tflops: Option<f64>,
    /// Where the figures come from.
    pub source: String,
    /// When they were read.
    pub as_of: String,
}

impl Gpu {
    /// True for GPUs on which vLLM 0.32 starts an API server with 1,024 sequences and 8,192 or
    /// more batched tokens: 70 GiB and up, the A100 excepted.
    #[must_use]
    pub fn takes_large_defaults(&self) -> bool {
        self.memory_mib >= 70 * 1024 && !self.name.starts_with("a100")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gpu: Vec<Gpu>,
}

static GPUS: LazyLock<Vec<Gpu>> = LazyLock::new(|| {
    let file: File = toml::from_str(include_str!("data/gpus.toml")).expect("gpus.toml is sound");
    file.gpu
});

/// All GPUs.
#[must_use]
pub fn all() -> &'static [Gpu] {
    &GPUS
}

/// The GPU of this name or alias, in any case.
#[must_use]
pub fn find(name: &str) -> Option<&'static Gpu> {
    GPUS.iter().find(|gpu| {
        gpu.name.eq_ignore_ascii_case(name)
            || gpu.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
    })
}
