//! Why something from the wire was refused.

use trunkline_core::id::InvalidId;

/// A refused message. The text names message, field and value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// An id that is not one.
    #[error("{message}.{field}: {cause}")]
    Id {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// What is wrong with it.
        cause: InvalidId,
    },
    /// A field that has to be set is not.
    #[error("{message}.{field} is missing")]
    Missing {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
    },
    /// An enum value that is 0 or not known.
    #[error("{message}.{field}: {value} is not a value this version knows")]
    Enum {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// The value.
        value: i32,
    },
    /// A value that is well-formed and makes no sense there.
    #[error("{message}.{field}: '{value}' is not allowed: {why}")]
    Value {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// The value, cut to 80 characters.
        value: String,
        /// Why.
        why: &'static str,
    },
    /// The same item twice.
    #[error("{message}.{field}: '{value}' comes twice")]
    Duplicate {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// The item.
        value: String,
    },
    /// More than is accepted.
    #[error("{message}.{field}: {count} is over the limit of {limit}")]
    TooMany {
        /// Message.
        message: &'static str,
        /// Field.
        field: &'static str,
        /// How many, items or bytes.
        count: usize,
        /// How many are accepted.
        limit: usize,
    },
    /// Bytes that are not the message they should be.
    #[error("{message} cannot be decoded: {why}")]
    Undecodable {
        /// Message.
        message: &'static str,
        /// What the decoder says.
        why: String,
    },
    /// A message that may not come at this point.
    #[error("{message} came {point}")]
    OutOfPlace {
        /// Message.
        message: &'static str,
        /// Where.
        point: &'static str,
    },
    /// The number of items is not the one the end names.
    #[error("{message}.count: {received} items came, the end says {announced}")]
    Count {
        /// The message that ends the items.
        message: &'static str,
        /// Received.
        received: usize,
        /// Announced.
        announced: u32,
    },
    /// The digest is not the one the end names.
    #[error("{message}.sha256 is not the SHA-256 over the parts that came")]
    Digest {
        /// The message that ends the items.
        message: &'static str,
    },
    /// A delta is missing.
    #[error("{message}.seq: {found} where {expected} was expected: a delta is missing")]
    Hole {
        /// Message.
        message: &'static str,
        /// Expected.
        expected: u64,
        /// Found.
        found: u64,
    },
}

impl WireError {
    /// A [`WireError::Value`], its value cut to size.
    pub(crate) fn value(
        message: &'static str,
        field: &'static str,
        value: &dyn ToString,
        why: &'static str,
    ) -> Self {
        Self::Value { message, field, value: value.to_string().chars().take(80).collect(), why }
    }
}
