//! Answers as JSON: the protobuf JSON mapping of the wire messages with the field names of the `.proto` files, all fields
//! present, 64-bit integers as numbers. What a script reads here is what the contract documents.

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;

/// Why an answer cannot be written as JSON.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The descriptors.
    #[error("the message trunkline.v1.{0} has no descriptor")]
    Descriptor(String),
    /// Decoding by descriptor.
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
    /// The mapping.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// A message of `trunkline.v1` by its short name.
pub fn one<M: Message>(name: &str, message: &M) -> Result<String, Error> {
    Ok(serde_json::to_string_pretty(&value(&descriptor(name)?, message)?)?)
}

/// An array of messages.
pub fn many<M: Message>(name: &str, messages: &[M]) -> Result<String, Error> {
    let descriptor = descriptor(name)?;
    let values: Result<Vec<Value>, Error> =
        messages.iter().map(|m| value(&descriptor, m)).collect();
    Ok(serde_json::to_string_pretty(&values?)?)
}

fn descriptor(name: &str) -> Result<MessageDescriptor, Error> {
    let missing = || Error::Descriptor(name.to_owned());
    let pool = DescriptorPool::decode(trunkline_proto::DESCRIPTOR_SET).map_err(|_| missing())?;
    pool.get_message_by_name(&format!("trunkline.v1.{name}")).ok_or_else(missing)
}

fn value<M: Message>(descriptor: &MessageDescriptor, message: &M) -> Result<Value, Error> {
    let bytes = message.encode_to_vec();
    let dynamic = DynamicMessage::decode(descriptor.clone(), bytes.as_slice())?;
    let options = SerializeOptions::new()
        .stringify_64_bit_integers(false)
        .use_proto_field_name(true)
        .skip_default_fields(false);
    Ok(dynamic.serialize_with_options(serde_json::value::Serializer, &options)?)
}
