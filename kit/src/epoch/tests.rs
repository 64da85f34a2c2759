use super::*;

use crate::lease::Deadline;
use crate::script::{Script, Store, scripted};

const PATH: &str = "/api/v1/namespaces/trunkline-system/configmaps/trunkline-state";

fn term(transitions: u64) -> Term {
    Term { number: 1, transitions, deadline: Deadline::never() }
}

fn store(api: Api) -> StateStore {
    StateStore::new(api, "trunkline-system", Clock::virtual_time())
}

/// Answers from `objects` until the future is done.
async fn served<T>(script: &mut Script, objects: &mut Store, future: impl Future<Output = T>) -> T {
    tokio::pin!(future);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            asked = script.next() => objects.answer(asked),
        }
    }
}

fn held(objects: &Store) -> &Value {
    &objects.get(PATH).unwrap()["data"]
}

#[test]
fn an_epoch_is_one_above_all_that_is_known_and_absurd_reports_are_refused() {
    let next = |stored, transitions, reported: Option<u64>| {
        next_epoch(Epoch(stored), transitions, reported.map(Epoch)).ok()
    };
    assert_eq!(next(0, 0, None), Some(Epoch(1)));
    assert_eq!(next(7, 3, Some(5)), Some(Epoch(8)));
    assert_eq!(next(3, 7, None), Some(Epoch(8)));
    assert_eq!(next(3, 7, Some(70)), Some(Epoch(71)));
    assert_eq!(next(3, 7, Some(7 + LARGEST_JUMP)), Some(Epoch(8 + LARGEST_JUMP)));
    assert_eq!(next(3, 7, Some(8 + LARGEST_JUMP)), None);
}

#[tokio::test(start_paused = true)]
async fn every_term_takes_a_higher_epoch_and_the_rest_of_the_state_stays() {
    let (api, mut script) = scripted();
    let (state, mut objects) = (store(api), Store::default());
    let first = served(&mut script, &mut objects, state.take(&term(0), None)).await.unwrap();
    assert_eq!(first, Epoch(1));
    assert_eq!(*held(&objects), json!({"epoch": "1"}));
    let current = term(0);
    let set = state.update(&current, |s| {
        s.mode = Some("read-only".into());
        Ok(())
    });
    served(&mut script, &mut objects, set).await.unwrap();
    let second =
        served(&mut script, &mut objects, state.take(&term(9), Some(Epoch(4)))).await.unwrap();
    assert_eq!(second, Epoch(10));
    assert_eq!(*held(&objects), json!({"epoch": "10", "mode": "read-only"}));
    let read = served(&mut script, &mut objects, state.read()).await.unwrap();
    assert_eq!(read, State { epoch: Epoch(10), mode: Some("read-only".into()), fuse: None });
}

#[tokio::test(start_paused = true)]
async fn two_terms_that_write_at_once_get_different_epochs() {
    let (api, mut script) = scripted();
    let (state, mut objects) = (store(api), Store::default());
    served(&mut script, &mut objects, state.take(&term(0), None)).await.unwrap();
    let (ours, theirs) = (term(0), term(0));
    let both = async { tokio::join!(state.take(&ours, None), state.take(&theirs, None)) };
    let (a, b) = served(&mut script, &mut objects, both).await;
    let mut epochs = [a.unwrap(), b.unwrap()];
    epochs.sort();
    assert_eq!(epochs, [Epoch(2), Epoch(3)]);
}

#[tokio::test(start_paused = true)]
async fn an_epoch_whose_answer_was_lost_is_never_taken_twice() {
    let (api, mut script) = scripted();
    let (state, mut objects) = (store(api), Store::default());
    let term = term(0);
    let task = tokio::spawn(async move { state.take(&term, None).await });
    objects.answer(script.next().await);
    objects.lose(script.next().await);
    assert_eq!(*held(&objects), json!({"epoch": "1"}));
    objects.answer(script.next().await);
    objects.answer(script.next().await);
    assert_eq!(task.await.unwrap().unwrap(), Epoch(2));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_epoch_is_an_error_and_never_zero() {
    let (api, mut script) = scripted();
    let (state, mut objects) = (store(api), Store::default());
    objects.put(PATH, json!({"metadata": {"name": STATE_CONFIGMAP}, "data": {"epoch": "many"}}));
    let result = served(&mut script, &mut objects, state.take(&term(5), None)).await;
    assert!(matches!(result, Err(EpochError::Unreadable(text)) if text == "many"));
    assert_eq!(objects.writes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_bare_404_is_not_an_absent_state() {
    let (api, mut script) = scripted();
    let state = store(api);
    let (result, ()) = tokio::join!(state.read(), async {
        script.next().await.text(404, "not found");
    });
    assert!(matches!(result, Err(EpochError::Api(_))));
}

#[tokio::test(start_paused = true)]
async fn a_term_that_is_over_writes_nothing() {
    let (api, mut script) = scripted();
    let (state, mut objects) = (store(api), Store::default());
    let over = term(0);
    over.deadline.end();
    let result = served(&mut script, &mut objects, state.take(&over, None)).await;
    assert!(matches!(result, Err(EpochError::TermOver)));
    assert_eq!(objects.writes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_cannot_lower_the_epoch() {
    let (api, mut script) = scripted();
    let (state, mut objects) = (store(api), Store::default());
    served(&mut script, &mut objects, state.take(&term(6), None)).await.unwrap();
    let current = term(6);
    let lower = state.update(&current, |s| {
        s.epoch = Epoch(1);
        Ok(())
    });
    served(&mut script, &mut objects, lower).await.unwrap();
    assert_eq!(*held(&objects), json!({"epoch": "7"}));
}
