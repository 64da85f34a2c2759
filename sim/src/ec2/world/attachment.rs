//! Attachments and the life of instances.

use super::super::model::{AttachmentState, Effect};
use super::{Timer, World};

impl World {
    /// The ENIs that are attached to an instance, with their attachment.
    pub(crate) fn attachments_of<'a>(
        &'a self,
        instance: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a AttachmentState)> {
        self.live().filter_map(move |e| {
            let attachment = e.state.attachment.as_ref()?;
            (attachment.instance == instance).then_some((e.state.id.as_str(), attachment))
        })
    }

    /// The ENI of an attachment id.
    pub(crate) fn by_attachment(&self, id: &str) -> Option<(String, AttachmentState)> {
        self.live().find_map(|e| {
            let attachment = e.state.attachment.as_ref().filter(|a| a.id == id)?;
            Some((e.state.id.clone(), attachment.clone()))
        })
    }

    /// Starts an attachment; it is complete after `delay` ms. Its id is answered.
    pub(crate) fn attach(
        &mut self,
        eni: &str,
        instance: &str,
        place: (u32, u32),
        delete_on_termination: bool,
        delay: u64,
    ) -> String {
        let id = self.new_id("eni-attach-");
        let attachment = AttachmentState {
            id: id.clone(),
            instance: instance.to_owned(),
            device_index: place.0,
            card: place.1,
            status: "attaching".into(),
            delete_on_termination,
            attached_ms: self.wall_ms,
        };
        if let Some(truth) = self.eni_mut(eni) {
            truth.drop_hold();
            truth.state.attachment = Some(attachment);
        }
        self.effects.push(Effect::Attached {
            eni: eni.to_owned(),
            instance: instance.to_owned(),
            attachment: id.clone(),
            device_index: place.0,
        });
        self.touch_with_branches(eni);
        self.at(delay, Timer::Attached(eni.to_owned(), id.clone()));
        id
    }

    /// Starts a detachment.
    pub(crate) fn detach(&mut self, eni: &str) {
        let delay = self.switches.lag.detach.pick(&mut self.rng);
        let Some(attachment) = self.eni_mut(eni).and_then(|e| e.state.attachment.as_mut()) else {
            return;
        };
        attachment.status = "detaching".into();
        let (id, instance) = (attachment.id.clone(), attachment.instance.clone());
        self.effects.push(Effect::Detached {
            eni: eni.to_owned(),
            instance,
            attachment: id.clone(),
        });
        self.touch(eni, (0, 0));
        self.at(delay, Timer::Detached(eni.to_owned(), id));
    }

    /// Ends an attachment at once.
    pub(super) fn end_attachment(&mut self, eni: &str) {
        let Some(attachment) = self.eni_mut(eni).and_then(|e| e.state.attachment.take()) else {
            return;
        };
        if attachment.status != "detaching" {
            self.effects.push(Effect::Detached {
                eni: eni.to_owned(),
                instance: attachment.instance,
                attachment: attachment.id,
            });
        }
        self.touch_with_branches(eni);
    }

    pub(super) fn attachment_complete(&mut self, eni: &str, id: &str) {
        let attachment = self.eni_mut(eni).and_then(|e| e.state.attachment.as_mut());
        if let Some(a) = attachment.filter(|a| a.id == id && a.status == "attaching") {
            a.status = "attached".into();
            self.touch(eni, (0, 0));
        }
    }

    pub(super) fn detachment_complete(&mut self, eni: &str, id: &str) {
        let ours = |e: &mut super::Eni| e.state.attachment.as_ref().is_some_and(|a| a.id == id);
        if self.eni_mut(eni).is_some_and(ours) {
            self.end_attachment(eni);
        }
    }

    /// The status of branches follows their trunk.
    fn touch_with_branches(&mut self, eni: &str) {
        self.touch(eni, (0, 0));
        for branch in self.branches_of(eni) {
            self.touch(&branch, (0, 0));
        }
    }

    /// Gives an instance another state. A terminated one loses its ENIs: those with `deleteOnTermination` are deleted,
    /// the others become free, and the branches of its trunk stay behind (row 15).
    pub(crate) fn set_instance_state(&mut self, id: &str, state: &str) -> bool {
        let Some(instance) = self.instances.get_mut(id) else {
            return false;
        };
        state.clone_into(&mut instance.state);
        self.effects
            .push(Effect::InstanceState { instance: id.to_owned(), state: state.to_owned() });
        if state == "terminated" || state == "forgotten" {
            self.lose_enis(id);
        }
        if state == "forgotten" {
            self.instances.remove(id);
        }
        true
    }

    fn lose_enis(&mut self, instance: &str) {
        let attached: Vec<(String, bool)> = self
            .attachments_of(instance)
            .map(|(eni, a)| (eni.to_owned(), a.delete_on_termination))
            .collect();
        for (eni, delete) in attached {
            for branch in self.branches_of(&eni) {
                let settle = self.switches.lag.terminate.pick(&mut self.rng);
                self.end_associations_of(&branch, settle);
            }
            if delete {
                self.delete_eni(&eni);
            } else {
                self.end_attachment(&eni);
            }
        }
    }
}
