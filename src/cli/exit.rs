//! Exit codes, as scripts rely on them.

use std::process::ExitCode;

/// How the program ends when it is neither interrupted (130) nor broken (101).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Answered, targets met.
    Answered,
    /// Answered: targets not met.
    TargetsMissed,
    /// Bad input, or a file that cannot be read or written.
    BadInput,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Answered => 0,
            Exit::TargetsMissed => 1,
            Exit::BadInput => 2,
        })
    }
}
