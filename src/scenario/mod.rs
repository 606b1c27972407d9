//! Scenario files: from TOML text to checked, plain data for the other rooms, with every problem of
//! a file shown at once. The only room that knows the vocabulary of scenarios and profiles.

mod duration;
pub mod problem;
pub mod profile;
mod read;
mod tree;
