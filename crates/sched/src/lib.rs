//! Which tokens run next and where their KV lives; pure logic.
#![forbid(unsafe_code)]
