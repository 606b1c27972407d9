//! Tests of the reference engine's parts.
