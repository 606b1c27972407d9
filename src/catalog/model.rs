//! Models: the shape that decides memory and work, by catalog name, alias or repository.

use serde::Deserialize;
use std::sync::LazyLock;

/// Number format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightDtype {
    /// 2 bytes a parameter.
    Bf16,
    /// 1 byte a parameter in the linear layers.
    Fp8,
}

/// A dense model with full attention in every layer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Catalog name.
    pub name: String,
    /// Repository on the Hugging Face hub.
    pub repository: String,
    /// Other names it goes by.
    pub aliases: Vec<String>,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Width of the feed-forward part.
    pub intermediate_size: u32,
    /// Query heads.
    pub attention_heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens in the vocabulary.
    pub vocab_size: u32,
    /// Longest context of the checkpoint.
    pub max_position_embeddings: u32,
    /// Parameters.
    pub parameters: u64,
    /// Number format of the weights.
    pub weight_dtype: WeightDtype,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Where the figures come from.
    pub source: String,
    /// When they were read.
    pub as_of: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    model: Vec<Model>,
}

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let file: File =
        toml::from_str(include_str!("data/models.toml")).expect("models.toml is sound");
    file.model
});

/// All models.
#[must_use]
pub fn all() -> &'static [Model] {
    &MODELS
}

/// The model of this name, alias or repository.
#[must_use]
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| {
        model.name == name
            || model.repository.eq_ignore_ascii_case(name)
            || model.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
    })
}
