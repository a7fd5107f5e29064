//! The questions that users of pages have not answered yet. A page gets only the random name of a
//! question; this module keeps the plan, so that an action changes only the jobs of that question.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::acts::Action;
use super::guard::random_token;
use crate::message::conflict;
use crate::plan::{Instance, Plan};

/// A question can be answered within this time.
const QUESTION_TIME: Duration = Duration::from_secs(600);

/// The largest number of questions. If there are more, the oldest questions are dropped.
const QUESTIONS_MAX: usize = 64;
/// The largest total size of all questions, in bytes. To keep this limit, the oldest questions are
/// dropped.
const PLANS_BYTES_MAX: usize = 64 << 20;

/// An action that waits until the user of a page confirms it.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) server: usize,
    /// The instance of the server in which the jobs were found.
    pub(super) instance: Instance,
    pub(super) action: Action,
    pub(super) plan: Plan,
    /// The action as a line of JSON, for the log.
    pub(super) line: String,
}

impl Question {
    /// Returns the number of bytes that a question keeps in memory.
    fn bytes(&self) -> usize {
        self.plan.bytes() + self.action.bytes()
    }
}

/// The unanswered questions, in order of time, each with its name and the time when it was asked.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<Vec<(String, Instant, Question)>>);

impl Questions {
    /// Locks the list of questions, and drops questions that are too old.
    fn lock(&self) -> MutexGuard<'_, Vec<(String, Instant, Question)>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, asked, _)| asked.elapsed() < QUESTION_TIME);
        all
    }

    /// Keeps a question for the user to answer, and returns the question's name. Fails if the
    /// question is too large.
    pub(super) fn open(&self, question: Question) -> Result<String> {
        let (count, bytes) = (question.plan.count(), question.bytes());
        let text = "jobs are too many for the page: use the command beanstalkctl";
        ensure!(bytes <= PLANS_BYTES_MAX, conflict(format!("{count} {text}")));
        let name = random_token()?;
        let mut all = self.lock();
        all.push((name.clone(), Instant::now(), question));
        let is_over = |all: &[(String, Instant, Question)]| {
            let bytes: usize = all.iter().map(|(_, _, question)| question.bytes()).sum();
            all.len() > QUESTIONS_MAX || bytes > PLANS_BYTES_MAX
        };
        while is_over(&all) {
            all.remove(0);
        }
        Ok(name)
    }

    /// Removes and returns a question, so that it can be answered only once.
    pub(super) fn answer(&self, name: &str) -> Result<Question> {
        let mut all = self.lock();
        let at = all.iter().position(|(other, ..)| other == name);
        let at = at.ok_or_else(|| {
            let minutes = QUESTION_TIME.as_secs() / 60;
            conflict(format!(
                "nothing was changed, because this question is no longer open: it is older than \
                 {minutes} minutes, it was answered, newer ones took its place, or the page was \
                 restarted; ask again"
            ))
        })?;
        Ok(all.remove(at).2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(jobs: u64) -> Question {
        let (instance, plan) = (Instance::default(), Plan::of_count(jobs));
        let action = serde_json::json!({ "act": "pause", "tube": "a", "seconds": 1 });
        let action = serde_json::from_value(action).unwrap();
        Question { server: 0, instance, action, plan, line: String::new() }
    }

    #[test]
    fn questions_are_bounded_in_number_and_bytes_and_answered_once() {
        let questions = Questions::default();
        let names: Vec<_> = (0..70).map(|_| questions.open(question(1)).unwrap()).collect();
        assert!(questions.answer(&names[5]).is_err() && questions.answer(&names[6]).is_ok());
        assert!(questions.answer(&names[6]).is_err());
        let large = questions.open(question(3_000_000)).unwrap();
        let larger = questions.open(question(4_000_000)).unwrap();
        assert!(questions.answer(&large).is_err() && questions.answer(&names[69]).is_err());
        assert!(questions.open(question(5_000_000)).is_err());
        assert_eq!(questions.answer(&larger).unwrap().plan.count(), 4_000_000);
    }
}
