//! A file in parts, as browsers and OpenAI's clients send it.

use axum::body::Bytes;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::header;
use tokio::time::{Duration, Instant, timeout_at};

use crate::error::ApiError;
use crate::files::{FileRecord, Purpose, Upload};
use crate::limits::BODY_BYTES_PER_SECOND;
use crate::state::AppState;

/// Longest value of a field that is no file, and longest name of a file, in bytes.
const VALUE_BYTES: usize = 1024;
/// Most bytes of a body beside its file.
const FRAME_BYTES: u64 = 1 << 20;
/// Most parts of a request.
const MOST_PARTS: usize = 16;

/// The parts so far.
#[derive(Default)]
struct Parts {
    file: Option<(Upload, String)>,
    purpose: Option<Purpose>,
}

/// Receives a file piece by piece, without holding it in memory where there is a folder.
pub(super) async fn receive(
    state: &AppState,
    request: Request,
    tenant: String,
) -> Result<FileRecord, ApiError> {
    let most = state.files().most_file_bytes();
    let length = request.headers().get(header::CONTENT_LENGTH);
    let announced = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > most.saturating_add(FRAME_BYTES)) {
        return Err(ApiError::too_large(most as usize));
    }
    let mut parts = Multipart::from_request(request, state).await.map_err(|rejection| {
        let message = format!("expected a body of multipart/form-data: {rejection}");
        ApiError::malformed(message)
    })?;
    let mut pace = Pace::new(state.config().body_timeout);
    let mut known = Parts::default();
    for _ in 0..=MOST_PARTS {
        let Some(part) = pace.within(parts.next_field()).await? else {
            return finish(known, tenant).await;
        };
        known.read(part, state, &mut pace).await?;
    }
    Err(ApiError::malformed(format!("the body has more than {MOST_PARTS} parts")))
}

async fn finish(parts: Parts, tenant: String) -> Result<FileRecord, ApiError> {
    let missing = |name: &str, expected: &str| {
        ApiError::param(name, format!("`{name}` is missing: expected {expected}"))
    };
    let (upload, name) = parts.file.ok_or_else(|| missing("file", "a file of lines"))?;
    let purpose = parts.purpose.ok_or_else(|| missing("purpose", "`batch`"))?;
    if upload.n_bytes() == 0 {
        return Err(ApiError::param("file", "`file` is empty: expected lines of requests"));
    }
    super::super::blocking(move || Ok(upload.finish(name, purpose, tenant)?)).await
}

impl Parts {
    async fn read(
        &mut self,
        mut part: Field<'_>,
        state: &AppState,
        pace: &mut Pace,
    ) -> Result<(), ApiError> {
        let name = part.name().unwrap_or_default().to_owned();
        match name.as_str() {
            "file" if self.file.is_some() => Err(ApiError::param("file", "`file` is given twice")),
            "file" => {
                let filename = part.file_name().unwrap_or("file.jsonl");
                let filename: String = filename.chars().take(VALUE_BYTES / 4).collect();
                let mut upload = Upload::new(state.files(), state.files().most_file_bytes())?;
                while let Some(piece) = pace.within(part.chunk()).await? {
                    pace.count(&piece);
                    // A piece is at most what hyper reads at once.
                    upload = super::super::blocking(move || {
                        upload.write(&piece)?;
                        Ok(upload)
                    })
                    .await?;
                }
                self.file = Some((upload, filename));
                Ok(())
            }
            "purpose" => {
                let mut value = Vec::new();
                while let Some(piece) = pace.within(part.chunk()).await? {
                    value.extend_from_slice(&piece);
                    if value.len() > VALUE_BYTES {
                        return Err(ApiError::param("purpose", "`purpose` must be `batch`"));
                    }
                }
                if value != b"batch" {
                    let message = "`purpose` must be `batch`: files are for batches here";
                    return Err(ApiError::param("purpose", message));
                }
                self.purpose = Some(Purpose::Batch);
                Ok(())
            }
            other => {
                let other = crate::wire::json::brief(other);
                let message = format!("unknown parameter `{other}`");
                Err(ApiError::param(other, message))
            }
        }
    }
}

/// The time that a body may take: as any other, and longer for each MiB that has arrived.
struct Pace {
    deadline: Instant,
    whole: Duration,
}

impl Pace {
    fn new(whole: Duration) -> Self {
        Self { deadline: Instant::now() + whole, whole }
    }

    fn count(&mut self, piece: &Bytes) {
        let more = piece.len() as f64 / BODY_BYTES_PER_SECOND;
        self.deadline += Duration::from_secs_f64(more);
    }

    async fn within<T>(
        &self,
        part: impl Future<Output = Result<T, MultipartError>>,
    ) -> Result<T, ApiError> {
        match timeout_at(self.deadline, part).await {
            Err(_) => Err(ApiError::too_slow(self.whole)),
            Ok(Err(error)) => {
                let message = format!("the body cannot be read: {}", error.body_text());
                Err(ApiError::malformed(message))
            }
            Ok(Ok(part)) => Ok(part),
        }
    }
}
