//! Each policy on a small fleet.
