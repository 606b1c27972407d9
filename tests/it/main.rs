//! Integration tests, one binary.
mod calibration;
