//! The commented scenario that `init` writes.

/// A scenario to start from: runs as it stands.
#[must_use]
pub const fn init_template() -> &'static str {
    include_str!("template.toml")
}
