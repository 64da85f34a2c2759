//! What the configuration and the admin add: subnets, groups, instances, ENIs that no API call made.

use super::super::config::Config;
use super::super::error::{ApiError, is_ec2_id};
use super::super::model::{
    Effect, EniSpec, GroupSpec, InstanceSpec, InstanceState, SubnetSpec, SubnetState,
};
use super::{NewEni, Pool, Subnet, Wanted, Wire, World};

impl World {
    /// The world that a configuration describes.
    pub(crate) fn new(config: &Config, wall_ms: i64) -> Result<Self, ApiError> {
        let mut world = Self::empty(config.seed, config.switches.clone());
        world.wall_ms = wall_ms;
        world.region.clone_from(&config.region);
        world.account.clone_from(&config.account);
        world.accounts.clone_from(&config.accounts);
        world.vpc.clone_from(&config.vpc);
        for subnet in &config.subnets {
            world.add_subnet(subnet.clone())?;
        }
        for group in &config.security_groups {
            world.add_group(group.clone())?;
        }
        for instance in &config.instances {
            world.add_instance(instance.clone())?;
        }
        Ok(world)
    }

    fn id_for(&mut self, given: String, prefix: &str) -> Result<String, ApiError> {
        match given.as_str() {
            "" => Ok(self.new_id(prefix)),
            id if is_ec2_id(id, prefix) => Ok(given),
            id => Err(ApiError::value(format!("'{id}' is not an id that starts with '{prefix}'"))),
        }
    }

    /// Adds a subnet and answers its id.
    pub(crate) fn add_subnet(&mut self, spec: SubnetSpec) -> Result<String, ApiError> {
        let id = self.id_for(spec.id, "subnet-")?;
        let pool = Pool::new(&spec.cidr, spec.ipv6_cidr.as_deref()).ok_or_else(|| {
            ApiError::value(format!(
                "'{}' is no block of /16 to /28, or its IPv6 block is no /64",
                spec.cidr
            ))
        })?;
        let zone = if spec.zone.is_empty() { format!("{}a", self.region) } else { spec.zone };
        let vpc = if spec.vpc.is_empty() { self.vpc.clone() } else { spec.vpc };
        let state = SubnetState {
            id: id.clone(),
            vpc,
            zone,
            cidr: spec.cidr,
            ipv6_cidr: spec.ipv6_cidr,
            free: pool.free_count(),
            tags: spec.tags,
        };
        self.subnets.insert(
            id.clone(),
            Subnet { state, assign_ipv6: spec.assign_ipv6, pool, shown_free: (0, 0) },
        );
        self.effects.push(Effect::SubnetAdded { subnet: id.clone() });
        Ok(id)
    }

    /// Adds a security group and answers its id.
    pub(crate) fn add_group(&mut self, mut spec: GroupSpec) -> Result<String, ApiError> {
        spec.id = self.id_for(spec.id, "sg-")?;
        if spec.vpc.is_empty() {
            spec.vpc.clone_from(&self.vpc);
        }
        if spec.name.is_empty() {
            spec.name.clone_from(&spec.id);
        }
        let id = spec.id.clone();
        self.effects.push(Effect::GroupAdded { group: id.clone() });
        self.groups.insert(id.clone(), spec);
        Ok(id)
    }

    /// The VPC's default group.
    pub(crate) fn default_group(&self, vpc: &str) -> Vec<String> {
        let own = |g: &&GroupSpec| g.vpc == vpc;
        let named = self.groups.values().filter(own).find(|g| g.name == "default");
        named.or_else(|| self.groups.values().find(own)).map(|g| g.id.clone()).into_iter().collect()
    }

    /// The given subnet, or the first.
    fn subnet_or_first(&self, id: &str) -> Result<String, ApiError> {
        if id.is_empty() {
            return self.subnets.keys().next().cloned().ok_or_else(|| ApiError::no_subnet(id));
        }
        self.subnets.get(id).map(|_| id.to_owned()).ok_or_else(|| ApiError::no_subnet(id))
    }

    /// Adds a running instance with its primary ENI.
    pub(crate) fn add_instance(&mut self, spec: InstanceSpec) -> Result<InstanceState, ApiError> {
        let id = self.id_for(spec.id, "i-")?;
        if self.instances.contains_key(&id) {
            return Err(ApiError::value(format!("instance '{id}' exists already")));
        }
        let subnet = self.subnet_or_first(&spec.subnet)?;
        let (vpc, zone) = self
            .subnets
            .get(&subnet)
            .map(|s| (s.state.vpc.clone(), s.state.zone.clone()))
            .ok_or_else(|| ApiError::no_subnet(&subnet))?;
        let groups = if spec.groups.is_empty() { self.node_groups(&vpc) } else { spec.groups };
        self.check_groups(&groups, &vpc)?;
        let primary = self.create_eni(NewEni {
            owner: self.account.clone(),
            subnet: subnet.clone(),
            interface_type: "interface".into(),
            groups: groups.clone(),
            addresses: Wanted { ipv4: spec.private_ip.into_iter().collect(), ..Wanted::default() },
            ..NewEni::default()
        })?;
        let private_ip = self.need_eni(&primary)?.state.ipv4;
        let instance = InstanceState {
            id: id.clone(),
            instance_type: if spec.instance_type.is_empty() {
                "m5.large".into()
            } else {
                spec.instance_type
            },
            state: "running".into(),
            subnet: subnet.clone(),
            vpc,
            zone,
            private_ip,
            private_dns: self.dns(private_ip),
            primary_eni: primary.clone(),
            groups: groups.clone(),
            tags: spec.tags,
        };
        self.effects.push(Effect::InstanceAdded {
            instance: id.clone(),
            instance_type: instance.instance_type.clone(),
        });
        self.instances.insert(id.clone(), instance.clone());
        self.attach(&primary, &id, (0, 0), true, 0);
        for device in 1..=spec.extra_enis {
            let extra = self.create_eni(NewEni {
                owner: self.account.clone(),
                subnet: subnet.clone(),
                interface_type: "interface".into(),
                groups: groups.clone(),
                ..NewEni::default()
            })?;
            self.attach(&extra, &id, (device, 0), true, 0);
        }
        Ok(instance)
    }

    /// The group named `nodes`, or the VPC's default.
    fn node_groups(&self, vpc: &str) -> Vec<String> {
        match self.groups.values().find(|g| g.vpc == vpc && g.name == "nodes") {
            Some(group) => vec![group.id.clone()],
            None => self.default_group(vpc),
        }
    }

    /// Makes an ENI that no API call made, attached or associated as wanted, and answers its id.
    pub(crate) fn add_eni(&mut self, spec: EniSpec) -> Result<String, ApiError> {
        let subnet = self.subnet_or_first(&spec.subnet)?;
        let vpc = self.subnets.get(&subnet).map(|s| s.state.vpc.clone()).unwrap_or_default();
        let groups = if spec.groups.is_empty() { self.default_group(&vpc) } else { spec.groups };
        self.check_groups(&groups, &vpc)?;
        let id = self.id_for(spec.id, "eni-")?;
        if self.last_seen(&id).is_some() {
            return Err(ApiError::value(format!("ENI '{id}' exists or existed already")));
        }
        if let Some(trunk) = &spec.trunk {
            self.need_eni(trunk)?;
        }
        if let Some(instance) = spec.attach_to.as_ref().filter(|i| !self.instances.contains_key(*i))
        {
            return Err(ApiError::no_instance(instance));
        }
        let kind =
            if spec.interface_type.is_empty() { "interface".into() } else { spec.interface_type };
        let id = self.create_eni(NewEni {
            id,
            owner: if spec.owner.is_empty() { self.account.clone() } else { spec.owner },
            subnet,
            interface_type: kind,
            description: spec.description,
            mac: spec.mac,
            groups,
            tags: spec.tags,
            addresses: Wanted { ipv4: spec.private_ip.into_iter().collect(), ..Wanted::default() },
            ..NewEni::default()
        })?;
        if let Some(instance) = spec.attach_to {
            let used: Vec<u32> =
                self.attachments_of(&instance).map(|(_, a)| a.device_index).collect();
            let free = (0..=u32::MAX).find(|n| !used.contains(n)).unwrap_or_default();
            self.attach(&id, &instance, (free, 0), false, 0);
        }
        if let Some(trunk) = spec.trunk {
            self.associate(&id, &trunk, Wire::Vlan(spec.vlan.unwrap_or(1)));
        }
        Ok(id)
    }
}
