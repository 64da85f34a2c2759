//! How many branches EC2 may have counted when it refused one more.

use trunkline_core::eni::FailureClass;
use trunkline_core::id::EniId;
use trunkline_core::node::report::{BranchState, PodReport};
use trunkline_core::wait::{Step, Wait};

/// The most branches that EC2 may have counted when it refused to associate `refused`. A lower limit that is believed
/// (`LIM-2`) holds for every node of the type, so whatever may have been counted is: one whose call is under way or in
/// doubt, and one that was disassociated of late, whose slot EC2 frees only seconds later (`ec2.md` §13 row 5), even if
/// its cooldown was short and it is deleted already. A branch that EC2 refused for the same reason was not.
pub(super) fn may_be_associated(pods: &[PodReport], others: usize, refused: &EniId) -> u32 {
    let branches = pods.iter().flat_map(|pod| {
        let full = matches!(
            &pod.wait,
            Some((Wait::Ec2(Step::Associate, FailureClass::BranchLimit, _), _))
        );
        pod.branches.iter().filter(move |branch| match branch.state {
            BranchState::Reserved | BranchState::Creating => false,
            BranchState::Created => !full && branch.eni.as_ref() != Some(refused),
            _ => true,
        })
    });
    u32::try_from(branches.count() + others).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use trunkline_core::id::{PodRef, VlanId};
    use trunkline_core::node::report::BranchReport;

    use super::*;

    fn eni(n: usize) -> EniId {
        format!("eni-{n:08x}").parse().unwrap()
    }

    fn pod(n: usize, state: BranchState, wait: Option<Wait>) -> PodReport {
        PodReport {
            pod: PodRef {
                uid: format!("uid-{n}").parse().unwrap(),
                namespace: "default".parse().unwrap(),
                name: format!("pod-{n}").parse().unwrap(),
            },
            requested: 1,
            odd_request: None,
            branches: vec![BranchReport {
                eni: Some(eni(n)),
                mac: None,
                addresses: Vec::new(),
                association: None,
                vlan: VlanId::new(1).unwrap(),
                state,
                health: trunkline_core::heal::Health::Ok,
                cooling_left: None,
            }],
            wait: wait.map(|wait| (wait, std::time::Duration::ZERO)),
            releasing: false,
            healing: false,
            attempts: 0,
            age: std::time::Duration::ZERO,
        }
    }

    #[test]
    fn lim_2_a_refusal_counts_whatever_ec2_may_have_counted() {
        let call = || Some(Wait::Call(Step::Associate));
        let full = || Some(Wait::Ec2(Step::Associate, FailureClass::BranchLimit, String::new()));
        let mut pods = vec![pod(1, BranchState::Bound, None), pod(2, BranchState::Created, call())];
        assert_eq!(may_be_associated(&pods, 0, &eni(2)), 1, "the refused one itself is not");
        pods.push(pod(3, BranchState::Created, call()));
        pods.push(pod(4, BranchState::Cooling, None));
        assert_eq!(may_be_associated(&pods, 1, &eni(2)), 4, "in flight, cooling, foreign");
        pods.push(pod(5, BranchState::Created, full()));
        pods.push(pod(6, BranchState::Reserved, None));
        assert_eq!(may_be_associated(&pods, 1, &eni(2)), 4, "refused before, only reserved");
    }
}
