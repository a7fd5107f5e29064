//! Deletes jobs, and saves them before.

use anyhow::{Context as _, Result};

use crate::client::{Client, write_numbered};
use crate::context::counted;
use crate::job::Job;
use crate::save::SaveFile;
use crate::sweep;

/// Deletes jobs in batches and counts.
#[derive(Debug)]
pub(crate) struct Remover {
    save: Option<SaveFile>,
    /// Deletes that the server has confirmed.
    pub(crate) deleted: u64,
    /// Jobs that were reserved or gone when their turn came.
    pub(crate) refused: u64,
    /// Jobs in the file.
    pub(crate) saved: u64,
}

impl Remover {
    /// Makes one that saves to this file first, if there is one.
    pub(crate) fn new(save: Option<SaveFile>) -> Self {
        Self { save, deleted: 0, refused: 0, saved: 0 }
    }

    /// Saves and deletes these jobs. If it fails, each job that is gone has been saved.
    pub(crate) fn remove(&mut self, client: &mut Client, jobs: Vec<Job>) -> Result<()> {
        let mut jobs = jobs;
        if let Some(file) = &mut self.save {
            let count = jobs.len();
            jobs = sweep::with_bodies(client, jobs)?;
            self.refused += (count - jobs.len()) as u64;
            file.save(&jobs)?;
            self.saved += jobs.len() as u64;
        }
        let write = |id: &u64, out: &mut Vec<u8>| write_numbered(out, "delete", *id);
        let result = client.pipeline(jobs.iter().map(|job| job.id), write, |_, reply| {
            match reply.word() {
                "DELETED" => self.deleted += 1,
                "NOT_FOUND" => self.refused += 1,
                _ => return Err(reply.unexpected("delete")),
            }
            Ok(())
        });
        let deleted = self.deleted;
        result.with_context(|| {
            format!(
                "the delete of {} was confirmed, of others perhaps not",
                counted(deleted, "job")
            )
        })
    }
}
