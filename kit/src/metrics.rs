//! Small helpers over prometheus-client.
//!
//! Labels are closed enums, never names, UIDs or Debug texts: a label value that comes from outside makes a metric
//! grow without bound. [`closed_label!`] makes such an enum; [`CounterBy`] counts by one and shows every value from the
//! start, so that "never happened" reads 0 and not "no data".

use std::fmt::{self, Write as _};
use std::hash::Hash;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
#[doc(no_inline)]
pub use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry};

/// An enum whose values are label values.
pub trait ClosedLabel: Copy + Eq + Hash + fmt::Debug + Send + Sync + 'static {
    /// All values.
    fn all() -> &'static [Self];
    /// The label value.
    fn name(self) -> &'static str;
}

/// Declares an enum with one label value per variant and implements [`ClosedLabel`] and `EncodeLabelValue` for it.
#[macro_export]
macro_rules! closed_label {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $( $(#[$vdoc:meta])* $variant:ident => $text:literal ),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name { $( $(#[$vdoc])* $variant, )* }

        impl $crate::metrics::ClosedLabel for $name {
            fn all() -> &'static [Self] {
                &[ $( Self::$variant, )* ]
            }

            fn name(self) -> &'static str {
                match self { $( Self::$variant => $text, )* }
            }
        }

        impl $crate::metrics::EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut $crate::metrics::LabelValueEncoder<'_>,
            ) -> Result<(), std::fmt::Error> {
                std::fmt::Write::write_str(encoder, $crate::metrics::ClosedLabel::name(*self))
            }
        }
    };
}

pub use closed_label;

/// A label set of one closed label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct By<C> {
    key: &'static str,
    value: C,
}

impl<C: ClosedLabel> EncodeLabelSet for By<C> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        let mut label = encoder.encode_label();
        let mut key = label.encode_label_key()?;
        key.write_str(self.key)?;
        let mut value = key.encode_label_value()?;
        value.write_str(self.value.name())?;
        value.finish()
    }
}

/// Makes a metric at its zero and registers it.
pub fn registered<M: Metric + Clone + Default>(
    registry: &mut Registry,
    name: &str,
    help: &str,
) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// A counter per value of a closed enum.
#[derive(Debug, Clone)]
pub struct CounterBy<C: ClosedLabel> {
    key: &'static str,
    family: Family<By<C>, Counter>,
}

impl<C: ClosedLabel> CounterBy<C> {
    /// Registers it under `name` (without `_total`) with the label `key`, all values at 0.
    pub fn register(registry: &mut Registry, name: &str, help: &str, key: &'static str) -> Self {
        let family = Family::<By<C>, Counter>::default();
        for value in C::all() {
            drop(family.get_or_create(&By { key, value: *value }));
        }
        registry.register(name, help, family.clone());
        Self { key, family }
    }

    /// Counts one.
    pub fn inc(&self, value: C) {
        self.family.get_or_create(&By { key: self.key, value }).inc();
    }

    /// How often it was counted.
    pub fn get(&self, value: C) -> u64 {
        self.family.get_or_create(&By { key: self.key, value }).get()
    }
}
