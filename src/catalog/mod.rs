//! What a scenario can name: GPUs, instance types, models and the calibration profiles shipped with
//! the program, each figure with its source and date. Data and look-ups; knows no other room.

pub mod gpu;
pub mod instance;
pub mod model;

pub use gpu::Gpu;
pub use instance::{Billing, Instance};
pub use model::{Model, WeightDtype};

/// Calibration profiles shipped with the program: name and file text.
pub const PROFILES: &[(&str, &str)] = &[
    ("llama-3-8b-h100", include_str!("../../calibration/llama-3-8b-h100.toml")),
    ("qwen3-8b-fp8-l4", include_str!("../../calibration/qwen3-8b-fp8-l4.toml")),
];

/// A table for people: headers, and one row an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Column titles, units included.
    pub headers: Vec<&'static str>,
    /// Cells, in the order of the headers.
    pub rows: Vec<Vec<String>>,
}

impl Listing {
    /// The same as a JSON array of objects keyed by header; empty cells are `null`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|row| {
            let cells = self.headers.iter().zip(row).map(|(header, cell)| {
                let value = if cell.is_empty() {
                    serde_json::Value::Null
                } else {
                    // Numbers stay numbers for the reader's sake.
                    cell.parse::<serde_json::Number>().map_or_else(
                        |_| serde_json::Value::String(cell.clone()),
                        serde_json::Value::Number,
                    )
                };
                ((*header).to_owned(), value)
            });
            serde_json::Value::Object(cells.collect())
        });
        serde_json::Value::Array(rows.collect())
    }
}

fn optional(figure: Option<f64>) -> String {
    figure.map_or_else(String::new, |x| x.to_string())
}

/// All GPUs.
#[must_use]
pub fn list_gpus() -> Listing {
    let row = |gpu: &Gpu| {
        vec![
            gpu.name.clone(),
            gpu.title.clone(),
            gpu.memory_mib.to_string(),
            gpu.bandwidth_gb_s.to_string(),
            gpu.bf16_tflops.to_string(),
            optional(gpu.fp8_tflops),
            gpu.as_of.clone(),
            gpu.source.clone(),
        ]
    };
    Listing {
        headers: vec![
            "name",
            "title",
            "memory_mib",
            "bandwidth_gb_s",
            "bf16_tflops",
            "fp8_tflops",
            "as_of",
            "source",
        ],
        rows: gpu::all().iter().map(row).collect(),
    }
}

/// All instance types with both prices.
#[must_use]
pub fn list_instances() -> Listing {
    let row = |instance: &Instance| {
        vec![
            instance.ec2_type.clone(),
            instance.gpu.clone(),
            instance.gpu_count.to_string(),
            instance.vcpu.to_string(),
            instance.ram_gib.to_string(),
            instance.network_gbps.to_string(),
            optional(instance.ec2_usd_per_hour),
            optional(instance.ml_usd_per_hour),
            instance.ec2_as_of.clone().unwrap_or_default(),
            instance.ml_source.clone(),
            instance.notes.clone(),
        ]
    };
    Listing {
        headers: vec![
            "ec2_type",
            "gpu",
            "gpu_count",
            "vcpu",
            "ram_gib",
            "network_gbps",
            "ec2_usd_per_hour",
            "ml_usd_per_hour",
            "ec2_as_of",
            "ml_source",
            "notes",
        ],
        rows: instance::all().iter().map(row).collect(),
    }
}

/// All models.
#[must_use]
pub fn list_models() -> Listing {
    let row = |model: &Model| {
        vec![
            model.name.clone(),
            model.repository.clone(),
            model.parameters.to_string(),
            match model.weight_dtype {
                WeightDtype::Bf16 => "bf16".to_owned(),
                WeightDtype::Fp8 => "fp8".to_owned(),
            },
            format!("{:.2}", model.weight_bytes as f64 / (1u64 << 30) as f64),
            model.layers.to_string(),
            model.hidden_size.to_string(),
            model.attention_heads.to_string(),
            model.kv_heads.to_string(),
            model.head_dim.to_string(),
            model.max_position_embeddings.to_string(),
            model.source.clone(),
        ]
    };
    Listing {
        headers: vec![
            "name",
            "repository",
            "parameters",
            "weight_dtype",
            "weights_gib",
            "layers",
            "hidden_size",
            "attention_heads",
            "kv_heads",
            "head_dim",
            "max_position_embeddings",
            "source",
        ],
        rows: model::all().iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traps_of_instance_sizes_hold() {
        let gpus = |name| instance::find(name).map(|(i, _)| i.gpu_count);
        assert_eq!(gpus("g6.12xlarge"), Some(4));
        assert_eq!(gpus("ml.g6e.12xlarge"), Some(4));
        assert_eq!(gpus("g7e.12xlarge"), Some(2));
        assert_eq!(gpus("g7.12xlarge"), Some(2));
        assert_eq!(gpus("g6.16xlarge"), Some(1));
        assert_eq!(gpus("p5.48xlarge"), Some(8));
        assert_eq!(gpus("inf2.xlarge"), None);
    }

    #[test]
    fn ml_names_bill_the_hosting_price() {
        let price = |name| instance::find(name).and_then(|(i, billing)| i.price(billing));
        assert_eq!(price("ml.p5.48xlarge"), Some(63.296));
        assert_eq!(price("p5.48xlarge"), Some(55.04));
        assert_eq!(price("p5en.48xlarge"), Some(63.296));
        assert_eq!(price("p5e.48xlarge"), None);
    }

    #[test]
    fn every_instance_names_a_gpu_and_every_price_its_source() {
        for instance in instance::all() {
            assert!(instance.gpu().memory_mib > 0);
            assert!(instance.ec2_usd_per_hour.is_none() || instance.ec2_as_of.is_some());
            assert!(!instance.ml_source.is_empty(), "{}", instance.ec2_type);
        }
    }

    #[test]
    fn model_shapes_agree_with_their_parameter_counts() {
        for m in model::all() {
            let (hidden, head) = (u64::from(m.hidden_size), u64::from(m.head_dim));
            let attention = hidden * head * u64::from(2 * m.attention_heads + 2 * m.kv_heads);
            let feed_forward = 3 * hidden * u64::from(m.intermediate_size);
            let embeddings = 2 * hidden * u64::from(m.vocab_size);
            let counted = u64::from(m.layers) * (attention + feed_forward) + embeddings;
            let ratio = m.parameters as f64 / counted as f64;
            // Norms and biases are all that is missing.
            assert!((0.999..1.001).contains(&ratio), "{}: {ratio}", m.name);
            assert!(m.weight_bytes <= 2 * m.parameters, "{}", m.name);
        }
    }

    #[test]
    fn models_answer_to_name_alias_and_repository() {
        for name in ["llama-3.1-8b", "meta-llama/Llama-3.1-8B", "meta-llama/llama-3.1-8b-instruct"]
        {
            assert_eq!(model::find(name).map(|m| m.name.as_str()), Some("llama-3.1-8b"));
        }
    }

    #[test]
    fn listings_are_rectangular_and_become_json() {
        for listing in [list_gpus(), list_instances(), list_models()] {
            assert!(!listing.rows.is_empty());
            for row in &listing.rows {
                assert_eq!(row.len(), listing.headers.len());
            }
            let json = listing.to_json();
            assert_eq!(json.as_array().map(Vec::len), Some(listing.rows.len()));
        }
    }
}
