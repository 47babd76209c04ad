//! Limits of the bodies of requests, checked while a body is read.
//!
//! The limits that hold for every use of a model are in [`pelton_base::limits`].

/// Largest body that is read without waiting for room, in bytes.
pub(crate) const SMALL_BODY_BYTES: usize = 64 << 10;
/// Bodies of the largest size that are in memory at once; a tenant has at most half of them.
pub(crate) const LARGE_BODIES: usize = 4;
/// Least speed at which a body must arrive while other bodies wait for its room, in bytes per second.
pub(crate) const BODY_BYTES_PER_SECOND: f64 = 1_048_576.0;
/// Most fields of an object.
pub(crate) const FIELDS: usize = 256;
/// Longest name of a field, in bytes.
pub(crate) const FIELD_NAME_BYTES: usize = 256;
/// Most messages of a conversation.
pub(crate) const MESSAGES: usize = 1 << 14;
/// Most parts of the content of a message.
pub(crate) const CONTENT_PARTS: usize = 1 << 12;
/// Most token ids of the prompts of a request.
pub(crate) const PROMPT_TOKENS: usize = 1 << 22;
/// Longest value of a parameter that takes any JSON, such as `metadata`, in bytes.
pub(crate) const FREE_JSON_BYTES: usize = 64 << 10;
/// Deepest nesting of such a value, in objects and arrays.
pub(crate) const FREE_JSON_DEPTH: usize = 32;
/// Largest file of certificates or of a private key, in bytes.
pub(crate) const CERTIFICATE_FILE_BYTES: u64 = 1 << 20;
/// Most certificates of a chain.
pub(crate) const CERTIFICATES: usize = 16;
