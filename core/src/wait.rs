//! Why a pod waits for its branch, in closed reasons with a sentence each (S81).

use std::fmt;

use crate::eni::FailureClass;
use crate::heal::HealWait;
use crate::verdict::Keep;
use crate::view::{Blind, OddRequest};

/// What something waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// A call is under way.
    Call(Step),
    /// This term's EC2 inventory is not whole yet.
    Inventory,
    /// The node's trunk is not ready; with what the node's set-up waits for.
    Trunk(String),
    /// The node's pods are not known.
    PodView(Blind),
    /// The node's links are not known, so no VLAN is handed out.
    LinkView(Blind),
    /// The agent has not told which VLANs were used of late.
    VlanHistory,
    /// The agent is asked for its links once more after a re-list.
    LinkBarrier,
    /// All branch slots of the trunk are taken.
    SlotsFull {
        /// How many the pod needs.
        needed: u32,
        /// How many are free.
        free: u32,
        /// The trunk's limit.
        limit: u32,
    },
    /// Slots are free, but a pod that came earlier has not got its own yet.
    Queued {
        /// How many are free.
        free: u32,
        /// The trunk's limit.
        limit: u32,
    },
    /// The pod asks for more branches than the trunk can ever have.
    MoreThanTrunk {
        /// How many the pod needs.
        needed: u32,
        /// The trunk's limit.
        limit: u32,
    },
    /// Slots are free, but every free VLAN still rests.
    VlansResting,
    /// The API server did not answer the live GET.
    PodUnverified(String),
    /// The security groups could not be determined.
    Groups(String),
    /// An EC2 call failed and is repeated.
    Ec2(Step, FailureClass, String),
    /// The annotation was refused and is tried again.
    PatchRefused(String),
    /// The pod's annotation is not ours to replace: it does not parse.
    AnnotationUnreadable(String),
    /// A static pod's mirror without a config hash: nobody could tell when it is over.
    StaticPodUnknown,
    /// The pod's annotation names an ENI that EC2 does not show.
    AnnotationGhost(String),
    /// The pod's annotation names an ENI of this trunk without our UID tag, which has to be adopted first.
    AwaitsAdoption(String),
    /// The ENI made for the pod is in another subnet than the node.
    SubnetDiffers,
    /// The pod names the resource in a way that gets it no branch (T10).
    AsksNothing(OddRequest),
    /// The pod is terminating; its branch is released once the node agrees that it is gone.
    Terminating,
    /// Allocation is switched off (`--read-only`).
    ReadOnly,
    /// A live pod's branch is lost, or may be.
    Heal(HealWait),
    /// A release waits.
    Release(Keep),
}

/// A step of allocation or release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The live GET of the pod.
    Verify,
    /// Matching the policies.
    Groups,
    /// `CreateNetworkInterface`.
    Create,
    /// `DescribeNetworkInterfaces` by id, because a live pod's ENI may be lost.
    Check,
    /// Reading back by UID tag.
    ReadBack,
    /// `DescribeNetworkInterfaces` by id.
    Describe,
    /// `DescribeNetworkInterfaces` by address or MAC.
    Search,
    /// `AssociateTrunkInterface`.
    Associate,
    /// `CreateTags`.
    Tag,
    /// `ModifyNetworkInterfaceAttribute`.
    SetGroups,
    /// The annotation.
    Annotate,
    /// The barrier.
    Barrier,
    /// A place in the cluster's pace.
    Pace,
    /// `DisassociateTrunkInterface`.
    Disassociate,
    /// `DeleteNetworkInterface`.
    Delete,
}

impl Step {
    /// It is a call to EC2, which waits for its turn in the action's request budget.
    pub fn asks_ec2(self) -> bool {
        match self {
            Self::Create
            | Self::Check
            | Self::ReadBack
            | Self::Describe
            | Self::Search
            | Self::Associate
            | Self::Tag
            | Self::SetGroups
            | Self::Disassociate
            | Self::Delete => true,
            Self::Verify | Self::Groups | Self::Annotate | Self::Barrier | Self::Pace => false,
        }
    }

    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Verify => "verify-pod",
            Self::Groups => "match-policies",
            Self::Create => "create-eni",
            Self::Check => "check-eni",
            Self::ReadBack => "read-back",
            Self::Describe => "describe-eni",
            Self::Search => "search-eni",
            Self::Associate => "associate",
            Self::Tag => "tag-eni",
            Self::SetGroups => "set-groups",
            Self::Annotate => "annotate",
            Self::Barrier => "barrier",
            Self::Pace => "pace",
            Self::Disassociate => "disassociate",
            Self::Delete => "delete-eni",
        }
    }
}

impl Wait {
    /// Short name of the reason, for the wire, logs and metric labels.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Call(_) => "call",
            Self::Inventory => "inventory",
            Self::Trunk(_) => "trunk",
            Self::PodView(_) => "pod-view",
            Self::LinkView(_) => "link-view",
            Self::VlanHistory => "vlan-history",
            Self::LinkBarrier => "link-barrier",
            Self::SlotsFull { .. } => "slots-full",
            Self::Queued { .. } => "queued",
            Self::MoreThanTrunk { .. } => "more-than-trunk",
            Self::VlansResting => "vlans-resting",
            Self::PodUnverified(_) => "pod-unverified",
            Self::Groups(_) => "groups",
            Self::Ec2(..) => "ec2",
            Self::PatchRefused(_) => "patch-refused",
            Self::AnnotationUnreadable(_) => "annotation-unreadable",
            Self::StaticPodUnknown => "static-pod-unknown",
            Self::AnnotationGhost(_) => "annotation-ghost",
            Self::AwaitsAdoption(_) => "awaits-adoption",
            Self::SubnetDiffers => "subnet-differs",
            Self::AsksNothing(_) => "asks-nothing",
            Self::Terminating => "terminating",
            Self::ReadOnly => "read-only",
            Self::Heal(wait) => wait.name(),
            Self::Release(keep) => keep.name(),
        }
    }
}

impl fmt::Display for Wait {
    /// The sentence a person is told.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(step) => write!(f, "a call is under way ({})", step.name()),
            Self::Inventory => f.write_str("not all ENIs are known yet: a new leader reads them from EC2, and waits until calls of the one before must show"),
            Self::Trunk(why) => write!(f, "the node's trunk ENI is not ready: {why}"),
            Self::PodView(blind) => {
                write!(f, "the node's pods are not known: {}", blind.sentence())
            }
            Self::LinkView(blind) => write!(
                f,
                "no VLAN is handed out while the node's links are not known: {}",
                blind.sentence()
            ),
            Self::VlanHistory => {
                f.write_str("the node's agent has not reported yet which VLANs were in use of late")
            }
            Self::LinkBarrier => f.write_str(
                "the node's agent is asked for its links once more before a VLAN is handed out",
            ),
            Self::SlotsFull { needed, free, limit } => write!(
                f,
                "the trunk is full: {needed} branch(es) needed, {free} of {limit} free; it goes on when a pod on this node ends"
            ),
            Self::Queued { free, limit } => write!(
                f,
                "{free} of {limit} branch slots are free, and a pod that came earlier on this node is served first"
            ),
            Self::MoreThanTrunk { needed, limit } => {
                write!(
                    f,
                    "the pod asks for {needed} branches, but this instance type allows only {limit}; lower the request"
                )
            }
            Self::VlansResting => {
                f.write_str("a slot is free, but every free VLAN id still rests after its last use")
            }
            Self::PodUnverified(why) => {
                write!(f, "the API server did not answer the live GET of the pod: {why}")
            }
            Self::Groups(why) => {
                write!(f, "the pod's security groups could not be determined: {why}")
            }
            Self::Ec2(step, class, why) => write!(
                f,
                "EC2 refused {} ({}): {why}; it is tried again",
                step.name(),
                class.name()
            ),
            Self::PatchRefused(why) => write!(
                f,
                "the API server refused the annotation: {why}; it is tried again with the same ENI"
            ),
            Self::AnnotationUnreadable(why) => write!(
                f,
                "the pod carries an annotation that cannot be read ({why}); nothing is changed, recreate the pod or remove the annotation"
            ),
            Self::StaticPodUnknown => f.write_str(
                "the pod is a static pod's mirror without kubernetes.io/config.hash; nobody could tell when it is over, so it gets no branch",
            ),
            Self::AnnotationGhost(eni) => {
                write!(f, "the pod's annotation names {eni}, which EC2 does not show")
            }
            Self::AwaitsAdoption(eni) => write!(
                f,
                "the pod's annotation names {eni}, which is not tagged for this pod and is kept as it is"
            ),
            Self::SubnetDiffers => {
                f.write_str("the ENI made for the pod lies in another subnet than the node")
            }
            Self::AsksNothing(odd) => f.write_str(odd.sentence()),
            Self::Terminating => f.write_str("the pod is terminating and gets no new branch"),
            Self::ReadOnly => f.write_str("nothing is changed at the moment (trunkline mode read-only, or --read-only)"),
            Self::Heal(wait) => wait.fmt(f),
            Self::Release(keep) => f.write_str(keep.sentence()),
        }
    }
}
