//! Recorded schedules of the real vLLM scheduler, replayed field by field.

use fleetcast::conform::{self, EngineKind};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracle")
}

#[test]
fn the_reference_engine_decides_as_recorded_vllm_did() {
    let report = conform::run(&[fixtures()], EngineKind::Reference).unwrap();
    println!("{report}");
    assert_eq!((report.ok(), report.diverged(), report.skipped()), (61, 0, 0), "{report}");
}
