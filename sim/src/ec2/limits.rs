//! What each instance type can hold (`ec2.md` §10): the same table that the coordinator falls back to.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TypeLimits {
    pub(crate) interfaces: u32,
    pub(crate) ipv4_per_interface: u32,
    pub(crate) trunking: bool,
    pub(crate) branches: u32,
    pub(crate) hypervisor: String,
    pub(crate) bare_metal: bool,
    /// Interfaces of each network card, by card index.
    pub(crate) cards: Vec<(u32, u32)>,
    pub(crate) default_card: u32,
}

static TABLE: LazyLock<BTreeMap<&'static str, TypeLimits>> = LazyLock::new(|| {
    include_str!("../../../core/src/instance-limits.csv")
        .lines()
        .skip(1)
        .filter_map(parse)
        .collect()
});

fn parse(line: &'static str) -> Option<(&'static str, TypeLimits)> {
    let mut cells = line.split(',');
    let name = cells.next()?;
    let limits = TypeLimits {
        interfaces: cells.next()?.parse().ok()?,
        ipv4_per_interface: cells.next()?.parse().ok()?,
        trunking: cells.next()? == "true",
        branches: cells.next()?.parse().ok()?,
        hypervisor: cells.next()?.to_owned(),
        bare_metal: cells.next()? == "true",
        cards: cells
            .next()?
            .split(';')
            .filter_map(|card| {
                let (index, count) = card.split_once(':')?;
                Some((index.parse().ok()?, count.parse().ok()?))
            })
            .collect(),
        default_card: cells.next()?.parse().ok()?,
    };
    Some((name, limits))
}

pub(crate) fn of(instance_type: &str) -> Option<&'static TypeLimits> {
    TABLE.get(instance_type)
}

pub(crate) fn all() -> impl Iterator<Item = (&'static str, &'static TypeLimits)> {
    TABLE.iter().map(|(name, limits)| (*name, limits))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_line_of_the_table_is_read() {
        assert_eq!(super::all().count(), 1164);
        assert_eq!(super::all().filter(|(_, l)| l.trunking).count(), 1060);
        let p4d = super::of("p4d.24xlarge").unwrap();
        assert_eq!((p4d.interfaces, p4d.branches, p4d.cards.len()), (60, 62, 4));
        assert_eq!(super::of("zz9.large"), None);
    }
}
