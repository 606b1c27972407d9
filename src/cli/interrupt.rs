//! Ctrl-C: take away what is half written and leave with code 130. The files of a run gather in a
//! staging folder; whoever owns one registers it here, and moves files out of it only under the
//! same lock, so an interruption finds either nothing moved or everything.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Code of an interrupted program, as shells have it: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

/// Folders that must not outlive an interrupted run.
#[derive(Debug, Default)]
pub struct Litter {
    /// Removed with all they hold.
    pub staging: Vec<PathBuf>,
    /// Removed when empty, in this order.
    pub created: Vec<PathBuf>,
}

static LITTER: Mutex<Litter> = Mutex::new(Litter { staging: Vec::new(), created: Vec::new() });

impl Litter {
    /// Removes it all.
    pub fn remove(&mut self) {
        // What cannot be removed now could not be removed a second time either.
        for dir in self.staging.drain(..) {
            _ = std::fs::remove_dir_all(dir);
        }
        for dir in self.created.drain(..) {
            _ = std::fs::remove_dir(dir);
        }
    }
}

/// The litter of this process. While the guard lives no interruption takes effect.
pub fn litter() -> MutexGuard<'static, Litter> {
    LITTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes SIGINT, SIGTERM and SIGHUP clean up and leave.
pub fn install() {
    let handler = || {
        let mut litter = litter();
        litter.remove();
        // The one exit beside `main`: its threads are deep in simulations and cannot answer. The
        // lock is still held, so nothing is moved into place after this point.
        std::process::exit(INTERRUPTED);
    };
    // Fails only when a handler is installed already or the system refuses; then the default
    // action ends the process, and a staging folder with a hidden name may stay behind.
    _ = ctrlc::set_handler(handler);
}
