//! Instance types: GPUs, size and dated prices, by EC2 name or by the `ml.` name of SageMaker.

use super::gpu::{self, Gpu};
use serde::Deserialize;
use std::sync::LazyLock;

/// An instance type. Prices are on demand in us-east-1, USD an hour.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// EC2 name, such as `p5.48xlarge`.
    pub ec2_type: String,
    /// Catalog name of its GPU.
    pub gpu: String,
    /// GPUs in it.
    pub gpu_count: u32,
    /// Virtual CPUs.
    pub vcpu: u32,
    /// Main memory in GiB.
    pub ram_gib: f64,
    /// Network in Gbit/s.
    pub network_gbps: f64,
    /// What links its GPUs.
    pub interconnect: String,
    /// `yes` when SageMaker endpoints can use it.
    pub sagemaker_hosting: String,
    /// EC2 price; `None` when none is listed.
    pub ec2_usd_per_hour: Option<f64>,
    /// Date of the EC2 price.
    pub ec2_as_of: Option<String>,
    /// Source of the EC2 price.
    pub ec2_source: String,
    /// SageMaker hosting price; `None` when none is known.
    pub ml_usd_per_hour: Option<f64>,
    /// Source of the hosting price, or how it was derived.
    pub ml_source: String,
    /// Anything worth knowing.
    pub notes: String,
}

/// How an instance is billed, by the name it was asked for under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Billing {
    /// EC2 on demand.
    Ec2,
    /// SageMaker hosting (`ml.`).
    SageMakerHosting,
}

impl Instance {
    /// The GPU in it.
    #[must_use]
    pub fn gpu(&self) -> &'static Gpu {
        gpu::find(&self.gpu).expect("every instance names a GPU of the catalog")
    }

    /// Price in USD an hour under this billing; `None` when none is known.
    #[must_use]
    pub const fn price(&self, billing: Billing) -> Option<f64> {
        match billing {
            Billing::Ec2 => self.ec2_usd_per_hour,
            Billing::SageMakerHosting => self.ml_usd_per_hour,
        }
    }
}

static INSTANCES: LazyLock<Vec<Instance>> = LazyLock::new(|| {
    csv::Reader::from_reader(include_str!("data/instances.csv").as_bytes())
        .deserialize()
        .collect::<Result<_, _>>()
        .expect("instances.csv is sound")
});

/// All instance types.
#[must_use]
pub fn all() -> &'static [Instance] {
    &INSTANCES
}

/// The instance type of this name, with or without `ml.`, and how it is billed.
#[must_use]
pub fn find(name: &str) -> Option<(&'static Instance, Billing)> {
    let (ec2, billing) = match name.strip_prefix("ml.") {
        Some(rest) => (rest, Billing::SageMakerHosting),
        None => (name, Billing::Ec2),
    };
    INSTANCES.iter().find(|instance| instance.ec2_type == ec2).map(|found| (found, billing))
}
