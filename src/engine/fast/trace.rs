//! What the fast engine keeps for comparison with recorded schedules: steps that it ran singly, and
//! the marks that steps left on requests.

use crate::engine::record::{Admission, RequestTrace, StepRecord};
use crate::engine::request::RequestId;

/// Steps and requests recorded so far.
#[derive(Debug, Default)]
pub struct Trace {
    /// Single steps, by number.
    pub steps: Vec<StepRecord>,
    /// Requests, in order of arrival here.
    pub requests: Vec<RequestTrace>,
}

impl Trace {
    /// A request arrived.
    pub fn request(&mut self, id: RequestId) {
        self.requests.push(RequestTrace::new(id));
    }

    fn of(&mut self, id: RequestId) -> &mut RequestTrace {
        // Tests only: traces are short.
        self.requests
            .iter_mut()
            .rfind(|r| r.id == id)
            .expect("every request is recorded on arrival")
    }

    /// A request was admitted.
    pub fn admitted(&mut self, id: RequestId, admission: Admission) {
        self.of(id).admissions.push(admission);
    }

    /// Changes what is known of a request.
    pub fn change(&mut self, id: RequestId, change: impl FnOnce(&mut RequestTrace)) {
        change(self.of(id));
    }

    /// The record of step `number`, if it was run singly.
    pub fn step(&mut self, number: u64) -> Option<&mut StepRecord> {
        self.steps.iter_mut().rfind(|s| s.number == number)
    }
}
