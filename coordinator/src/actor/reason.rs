//! The events by which the books' notices are told.

use trunkline_core::node::event::NoticeKind;

use crate::events::{Reason, Severity};

/// `contract.md` §20.
pub(super) fn reason_of(kind: NoticeKind) -> (Severity, Reason) {
    match kind {
        NoticeKind::GroupsFromPolicies => (Severity::Normal, Reason::SecurityGroupRequested),
        NoticeKind::GroupsFromNode => (Severity::Warning, Reason::SecurityGroupRequested),
        NoticeKind::Allocated => (Severity::Normal, Reason::ResourceAllocated),
        NoticeKind::AllocationFailed => (Severity::Warning, Reason::BranchAllocationFailed),
        NoticeKind::AnnotationFailed => (Severity::Warning, Reason::BranchENIAnnotationFailed),
        NoticeKind::TrunkFull => (Severity::Warning, Reason::TrunkFull),
        NoticeKind::Waiting => (Severity::Normal, Reason::BranchENIWaiting),
        NoticeKind::OddRequest => (Severity::Warning, Reason::BranchENIRequestOdd),
        NoticeKind::AnnotationReplaced => (Severity::Warning, Reason::AnnotationReplaced),
        NoticeKind::AnnotationUnusable => (Severity::Warning, Reason::AnnotationUnusable),
        NoticeKind::UnboundBranch => (Severity::Warning, Reason::BranchENIUnbound),
        NoticeKind::StrayLink => (Severity::Warning, Reason::StrayLink),
        NoticeKind::ReleaseFailed => (Severity::Warning, Reason::BranchENIReleaseFailed),
        NoticeKind::Quarantined => (Severity::Warning, Reason::BranchENIQuarantined),
        NoticeKind::BranchLost => (Severity::Warning, Reason::BranchENILost),
        NoticeKind::BranchHealed => (Severity::Normal, Reason::BranchENIHealed),
        NoticeKind::HealNotPossible => (Severity::Warning, Reason::BranchENINotHealable),
        NoticeKind::HealFrozen => (Severity::Warning, Reason::BranchENIHealFrozen),
        NoticeKind::BranchDrifted => (Severity::Warning, Reason::BranchENIDrifted),
        NoticeKind::Evicted => (Severity::Warning, Reason::BranchENIPodEvicted),
        NoticeKind::RemainsKept => (Severity::Warning, Reason::DeadInstanceENIKept),
    }
}
