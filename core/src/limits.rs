//! How many branches and how many device slots an instance type has (`LIM-1`…`LIM-5`).
//!
//! Branch limits have no public API, so a table is compiled in (`instance-limits.csv`). It is the last resort: an
//! operator's override comes first, then what was learned at run time (interface counts from `DescribeInstanceTypes`, a
//! lower branch limit when EC2 refuses an association for capacity), then the table.

use std::collections::BTreeMap;

use crate::id::InstanceType;

/// The plain figures, one line a type.
const TABLE: &str = include_str!("instance-limits.csv");

/// Most branches a trunk can have: there are no more VLAN ids (`ANN-1`).
pub const MAX_BRANCHES: u32 = 120;

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TypeRow {
    /// Most interfaces over all cards.
    pub interfaces: u32,
    /// Addresses per interface.
    pub ipv4_per_interface: u32,
    /// A trunk is possible.
    pub trunking: bool,
    /// Most branches; 0 exactly when there is no trunking.
    pub branches: u32,
    /// Hypervisor; `None` for bare metal.
    pub hypervisor: Option<Hypervisor>,
    /// Card index → most interfaces on it.
    pub cards: BTreeMap<u32, u32>,
    /// The card on which interfaces go by default.
    pub default_card: u32,
}

impl TypeRow {
    /// `LIM-7`.
    pub fn is_nitro(&self) -> bool {
        self.hypervisor.is_none() || self.hypervisor == Some(Hypervisor::Nitro)
    }

    /// Device slots on the default card (`LIM-3`); `None` if the default card is not among the cards.
    pub fn slots(&self) -> Option<u32> {
        self.cards.get(&self.default_card).map(|most| self.interfaces.min(*most))
    }
}

/// Hypervisors of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hypervisor {
    /// Nitro.
    Nitro,
    /// Xen.
    Xen,
}

/// A line of the table that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the instance limits: {problem}")]
pub struct BadTable {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

/// Parses a table in the form of `instance-limits.csv`.
pub fn parse_table(text: &str) -> Result<BTreeMap<InstanceType, TypeRow>, BadTable> {
    let mut table = BTreeMap::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let bad = |problem: String| BadTable { line: index + 1, problem };
        let (name, row) = parse_line(line).map_err(bad)?;
        if table.insert(name.clone(), row).is_some() {
            return Err(bad(format!("{name} is there twice")));
        }
    }
    Ok(table)
}

fn parse_line(line: &str) -> Result<(InstanceType, TypeRow), String> {
    let fields: Vec<&str> = line.split(',').collect();
    let [name, interfaces, ipv4, trunking, branches, hypervisor, bare_metal, cards, default_card] =
        fields.as_slice()
    else {
        return Err(format!("{} columns, expected 9", fields.len()));
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("'{text}' is not a number"));
    let flag = |text: &str| {
        text.parse::<bool>().map_err(|_| format!("'{text}' is neither true nor false"))
    };
    let row = TypeRow {
        interfaces: number(interfaces)?,
        ipv4_per_interface: number(ipv4)?,
        trunking: flag(trunking)?,
        branches: number(branches)?,
        hypervisor: match (*hypervisor, flag(bare_metal)?) {
            ("nitro", false) => Some(Hypervisor::Nitro),
            ("xen", false) => Some(Hypervisor::Xen),
            ("", true) => None,
            (other, metal) => return Err(format!("hypervisor '{other}' with bare_metal {metal}")),
        },
        cards: cards
            .split(';')
            .map(|card| {
                let (index, most) =
                    card.split_once(':').ok_or_else(|| format!("'{card}' is not a card"))?;
                Ok((number(index)?, number(most)?))
            })
            .collect::<Result<_, String>>()?,
        default_card: number(default_card)?,
    };
    if row.trunking != (row.branches > 0) || row.branches > MAX_BRANCHES {
        return Err(format!("{} branches with trunking {}", row.branches, row.trunking));
    }
    Ok((InstanceType::new(name).map_err(|e| e.to_string())?, row))
}

/// What the operator says of a type. `None` leaves the next source in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Override {
    /// Branch limit; 0 means no trunking.
    pub branches: Option<u32>,
    /// Device slots on the default card.
    pub slots: Option<u32>,
}

/// Parses `TYPE=BRANCHES` or `TYPE=BRANCHES/SLOTS`, joined with commas.
pub fn parse_overrides(text: &str) -> Result<BTreeMap<InstanceType, Override>, String> {
    let mut overrides = BTreeMap::new();
    for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        let (name, figures) = entry
            .split_once('=')
            .ok_or_else(|| format!("'{entry}' is not TYPE=BRANCHES[/SLOTS]"))?;
        let name = InstanceType::new(name.trim()).map_err(|e| e.to_string())?;
        let number =
            |text: &str, most: u32| {
                text.trim().parse::<u32>().ok().filter(|n| *n <= most).ok_or_else(|| {
                    format!("'{text}' in '{entry}' is not a number from 0 to {most}")
                })
            };
        let (branches, slots) = match figures.split_once('/') {
            Some((branches, slots)) => (branches, Some(number(slots, 1_000)?)),
            None => (figures, None),
        };
        overrides.insert(name, Override { branches: Some(number(branches, MAX_BRANCHES)?), slots });
    }
    Ok(overrides)
}

/// What `DescribeInstanceTypes` tells of a type (`LIM-1`): branch limits are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LearnedType {
    /// Device slots on the default card.
    pub slots: u32,
}

/// What a node may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeLimits {
    /// Most branches on the trunk, 1 to [`MAX_BRANCHES`].
    pub branches: u32,
    /// Device slots on the default card (`LIM-3`).
    pub slots: u32,
}

/// Why a node can have no trunk. Both last until the operator or a new table says otherwise (`D23`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoLimits {
    /// In no source.
    #[error(
        "the instance type is unknown; give its branch limit with --instance-limits TYPE=BRANCHES/SLOTS"
    )]
    UnknownType,
    /// `LIM-5`.
    #[error("the instance type has no trunk interfaces")]
    NoTrunking,
    /// `LIM-3`.
    #[error(
        "the number of device slots on the default network card is unknown; give it with --instance-limits TYPE=BRANCHES/SLOTS"
    )]
    NoSlots,
}

/// All sources together.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    overrides: BTreeMap<InstanceType, Override>,
    learned: BTreeMap<InstanceType, LearnedType>,
    lowered: BTreeMap<InstanceType, u32>,
    table: BTreeMap<InstanceType, TypeRow>,
}

impl Limits {
    /// The compiled-in table and the operator's overrides.
    pub fn new(overrides: BTreeMap<InstanceType, Override>) -> Result<Self, BadTable> {
        Ok(Self { overrides, table: parse_table(TABLE)?, ..Self::default() })
    }

    /// Remembers what `DescribeInstanceTypes` said.
    pub fn learn_type(&mut self, name: InstanceType, learned: LearnedType) {
        self.learned.insert(name, learned);
    }

    /// EC2 refused an association for capacity while `held` branches were associated (`LIM-2`): believed, and remembered
    /// per type. Returns whether the limit in force is lower than before.
    pub fn lower_branches(&mut self, name: &InstanceType, held: u32) -> bool {
        let before = self.lookup(name).map(|l| l.branches).ok();
        let lowered = self.lowered.get(name).copied().unwrap_or(MAX_BRANCHES).min(held.max(1));
        self.lowered.insert(name.clone(), lowered);
        before.is_some_and(|b| lowered < b)
    }

    /// Whether `DescribeInstanceTypes` could add anything for this type.
    pub fn wants_learning(&self, name: &InstanceType) -> bool {
        !self.learned.contains_key(name)
            && !self.table.contains_key(name)
            && self
                .overrides
                .get(name)
                .is_some_and(|o| o.branches.is_some_and(|b| b > 0) && o.slots.is_none())
    }

    /// The limits in force for a type.
    pub fn lookup(&self, name: &InstanceType) -> Result<NodeLimits, NoLimits> {
        let said = self.overrides.get(name).copied().unwrap_or_default();
        let row = self.table.get(name);
        let branches = said.branches.or(row.map(|r| r.branches)).ok_or(NoLimits::UnknownType)?;
        if branches == 0 {
            return Err(NoLimits::NoTrunking);
        }
        let slots = said
            .slots
            .or(self.learned.get(name).map(|l| l.slots))
            .or(row.and_then(TypeRow::slots))
            .filter(|slots| *slots > 0)
            .ok_or(NoLimits::NoSlots)?;
        // What EC2 enforces also caps an override: beyond it associations only fail.
        let branches =
            branches.min(MAX_BRANCHES).min(self.lowered.get(name).copied().unwrap_or(MAX_BRANCHES));
        Ok(NodeLimits { branches, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> InstanceType {
        InstanceType::new(text).unwrap()
    }

    #[test]
    fn the_compiled_table_has_the_figures_of_the_contract() {
        let table = parse_table(TABLE).unwrap();
        assert_eq!(table.len(), 1164);
        assert_eq!(table.values().filter(|r| r.trunking).count(), 1060);
        assert_eq!(table.values().filter(|r| !r.trunking).count(), 104);
        let hypervisor = |h| table.values().filter(|r| r.hypervisor == h).count();
        assert_eq!(hypervisor(Some(Hypervisor::Nitro)), 968);
        assert_eq!(hypervisor(Some(Hypervisor::Xen)), 80);
        assert_eq!(hypervisor(None), 116);
        assert_eq!(table.values().filter(|r| r.cards.len() > 1).count(), 33);
        assert_eq!(table.values().map(|r| r.branches).max(), Some(120));
        let large = &table[&name("m5.large")];
        assert_eq!(
            (large.interfaces, large.ipv4_per_interface, large.trunking, large.branches),
            (3, 10, true, 9)
        );
        let p5 = &table[&name("p5.48xlarge")];
        assert_eq!(
            (p5.interfaces, p5.ipv4_per_interface, p5.trunking, p5.branches),
            (64, 50, true, 120)
        );
        assert_eq!(p5.cards.len(), 32);
        assert!(p5.cards.values().all(|most| *most == 2));
        assert_eq!(p5.slots(), Some(2));
        assert!(table.values().all(|r| r.default_card == 0 && r.slots().is_some_and(|s| s > 0)));
    }

    #[test]
    fn a_damaged_table_is_refused_with_its_line() {
        let header = "h\n";
        for line in [
            "m5.large,3,10,true,9,nitro,false,0:3",
            "m5.large,x,10,true,9,nitro,false,0:3,0",
            "m5.large,3,10,false,9,nitro,false,0:3,0",
            "m5.large,3,10,true,0,nitro,false,0:3,0",
            "m5.large,3,10,true,121,nitro,false,0:3,0",
            "m5.large,3,10,true,9,kvm,false,0:3,0",
            "m5.large,3,10,true,9,nitro,true,0:3,0",
            "m5.large,3,10,true,9,nitro,false,0-3,0",
            "M5,3,10,true,9,nitro,false,0:3,0",
        ] {
            assert_eq!(parse_table(&format!("{header}{line}")).unwrap_err().line, 2, "{line}");
        }
        let twice = "m5.large,3,10,true,9,nitro,false,0:3,0";
        assert_eq!(parse_table(&format!("{header}{twice}\n{twice}")).unwrap_err().line, 3);
    }

    #[test]
    fn override_beats_learned_beats_table_and_ec2_caps_them_all() {
        let overrides = parse_overrides("m5.large=20/5, zz9.large=7").unwrap();
        let mut limits = Limits::new(overrides).unwrap();
        assert_eq!(limits.lookup(&name("m5.large")), Ok(NodeLimits { branches: 20, slots: 5 }));
        assert_eq!(limits.lookup(&name("m5.xlarge")).unwrap().branches, 18);
        assert_eq!(limits.lookup(&name("zz9.large")), Err(NoLimits::NoSlots));
        assert!(limits.wants_learning(&name("zz9.large")));
        limits.learn_type(name("zz9.large"), LearnedType { slots: 4 });
        assert!(!limits.wants_learning(&name("zz9.large")));
        assert_eq!(limits.lookup(&name("zz9.large")), Ok(NodeLimits { branches: 7, slots: 4 }));
        assert!(limits.lower_branches(&name("m5.large"), 6));
        assert!(
            !limits.lower_branches(&name("m5.large"), 8),
            "a higher figure does not raise it again"
        );
        assert_eq!(limits.lookup(&name("m5.large")).unwrap().branches, 6);
    }

    #[test]
    fn s38_s39_unknown_and_trunkless_types_are_told_apart() {
        let limits = Limits::new(parse_overrides("m5.large=0").unwrap()).unwrap();
        assert_eq!(limits.lookup(&name("zz9.large")), Err(NoLimits::UnknownType));
        assert_eq!(limits.lookup(&name("c3.large")), Err(NoLimits::NoTrunking));
        assert_eq!(limits.lookup(&name("m5.large")), Err(NoLimits::NoTrunking));
    }

    #[test]
    fn overrides_that_make_no_sense_are_refused() {
        for text in ["m5.large", "m5.large=", "m5.large=121", "m5.large=-1", "m5.large=3/x", "M5=3"]
        {
            assert!(parse_overrides(text).is_err(), "{text}");
        }
        assert!(parse_overrides("").unwrap().is_empty());
    }
}
