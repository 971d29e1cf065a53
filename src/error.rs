//! The library's one error type: what went wrong in words for the person who is paged at night, and the NCCL result code the caller gets.

/// Result codes of `ncclResult_t` that an operation of ours can end with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Code {
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    Timeout = 8,
}

/// A failed call: the code for the caller and a sentence that says what failed, where, and what to try.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: Code,
    pub message: String,
}

/// Shorthand used throughout the crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
    pub fn cuda(message: impl Into<String>) -> Self {
        Self::new(Code::UnhandledCudaError, message)
    }
    pub fn system(message: impl Into<String>) -> Self {
        Self::new(Code::SystemError, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::InternalError, message)
    }
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidUsage, message)
    }
    pub fn remote(message: impl Into<String>) -> Self {
        Self::new(Code::RemoteError, message)
    }
}
