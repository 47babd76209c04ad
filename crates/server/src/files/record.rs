//! Records of a file and of a batch, in OpenAI's shape and with their owner.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Purpose of a file.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// Lines of a batch.
    Batch,
    /// Results of a batch.
    BatchOutput,
}

/// A file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FileRecord {
    pub(crate) id: String,
    pub(crate) bytes: u64,
    pub(crate) created_at: u64,
    pub(crate) filename: String,
    pub(crate) purpose: Purpose,
    /// Name of its owner.
    pub(crate) tenant: String,
}

impl FileRecord {
    /// As clients see it.
    pub(crate) fn shown(&self) -> Value {
        serde_json::json!({
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "filename": self.filename, "purpose": self.purpose, "status": "processed",
        })
    }
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BatchStatus {
    /// It waits for its turn.
    Validating,
    InProgress,
    Finalizing,
    Completed,
    Failed,
    Expired,
    Cancelling,
    Cancelled,
}

impl BatchStatus {
    /// Whether nothing more happens to it.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Expired | Self::Cancelled)
    }
}

/// A batch.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct BatchRecord {
    pub(crate) id: String,
    pub(crate) endpoint: String,
    pub(crate) input_file_id: String,
    pub(crate) completion_window: String,
    pub(crate) status: BatchStatus,
    pub(crate) output_file_id: Option<String>,
    pub(crate) error_file_id: Option<String>,
    pub(crate) created_at: u64,
    pub(crate) expires_at: u64,
    pub(crate) in_progress_at: Option<u64>,
    pub(crate) finalizing_at: Option<u64>,
    pub(crate) completed_at: Option<u64>,
    pub(crate) failed_at: Option<u64>,
    pub(crate) expired_at: Option<u64>,
    pub(crate) cancelling_at: Option<u64>,
    pub(crate) cancelled_at: Option<u64>,
    pub(crate) total: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// Why it failed as a whole.
    pub(crate) error: Option<String>,
    pub(crate) metadata: Value,
    /// Files that results are written to until they are handed over.
    pub(crate) work: Option<[String; 2]>,
    /// Name of its owner.
    pub(crate) tenant: String,
    /// Id of the key that made it, whose limits its lines obey; empty for none of the key file.
    #[serde(default)]
    pub(crate) key: String,
}

impl BatchRecord {
    /// Takes on a status, at this time.
    pub(crate) fn become_(&mut self, status: BatchStatus) {
        let now = Some(crate::wire::unix_seconds());
        self.status = status;
        match status {
            BatchStatus::Validating => {}
            BatchStatus::InProgress => self.in_progress_at = self.in_progress_at.or(now),
            BatchStatus::Finalizing => self.finalizing_at = now,
            BatchStatus::Completed => self.completed_at = now,
            BatchStatus::Failed => self.failed_at = now,
            BatchStatus::Expired => self.expired_at = now,
            BatchStatus::Cancelling => self.cancelling_at = now,
            BatchStatus::Cancelled => self.cancelled_at = now,
        }
    }

    /// As clients see it.
    pub(crate) fn shown(&self) -> Value {
        let errors = self.error.as_ref().map(|message| {
            let error = serde_json::json!({
                "code": "batch_failed", "message": message, "param": null, "line": null,
            });
            serde_json::json!({"object": "list", "data": [error]})
        });
        let mut shown = serde_json::to_value(self).expect("invariant: plain data");
        let fields = shown.as_object_mut().expect("invariant: an object");
        for private in ["tenant", "key", "total", "completed", "failed", "error", "work"] {
            fields.remove(private);
        }
        fields.insert("object".to_owned(), Value::from("batch"));
        fields.insert("errors".to_owned(), errors.unwrap_or_default());
        let counts = serde_json::json!({
            "total": self.total, "completed": self.completed, "failed": self.failed,
        });
        fields.insert("request_counts".to_owned(), counts);
        shown
    }
}
