//! The two shapes of JSON that checkpoint files need, stricter than JSON itself.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use pelton_base::limits;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::error::shown;

/// An object in which no key may occur twice.
///
/// JSON leaves open what a repeated key means; two readers that disagree about it see two different
/// checkpoints in one file.
#[derive(Debug)]
pub(crate) struct UniqueMap<V>(pub(crate) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Unique<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Unique<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(key) = access.next_key::<String>()? {
                    if key.len() > limits::TENSOR_NAME_BYTES {
                        return Err(A::Error::custom(format!(
                            "name `{}` is too long",
                            shown(&key)
                        )));
                    }
                    if map.contains_key(&key) {
                        return Err(A::Error::custom(format!("`{}` occurs twice", shown(&key))));
                    }
                    if map.len() == limits::FILE_TENSORS {
                        let limit = limits::FILE_TENSORS;
                        return Err(A::Error::custom(format!("more than {limit} entries")));
                    }
                    let value = access.next_value()?;
                    map.insert(key, value);
                }
                Ok(UniqueMap(map))
            }
        }

        deserializer.deserialize_map(Unique(PhantomData))
    }
}

/// A tensor's shape: few sizes, each of which fits an address.
#[derive(Debug)]
pub(crate) struct Shape(pub(crate) Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;

        impl<'de> Visitor<'de> for Sizes {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut shape = Vec::new();
                while let Some(size) = access.next_element()? {
                    if shape.len() == limits::TENSOR_RANK {
                        let limit = limits::TENSOR_RANK;
                        return Err(A::Error::custom(format!("more than {limit} dimensions")));
                    }
                    shape.push(size);
                }
                Ok(Shape(shape))
            }
        }

        deserializer.deserialize_seq(Sizes)
    }
}
