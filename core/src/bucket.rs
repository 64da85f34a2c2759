//! Our own copy of one EC2 token bucket (`ec2.md` §5), with a queue in front of it.
//!
//! EC2 throttles per account, Region and action; a refused call costs a token and a back-off. So every action has a
//! bucket of its own here, a little smaller than EC2's (its full burst less one token, its refill at 95 %), and callers
//! wait in it instead of in EC2's refusals. Where several users share an action, the more urgent goes first and equals
//! go in order of arrival (design §7).
//!
//! The account has other users, whom our books do not see. When EC2 says that it throttles, its bucket is empty whatever
//! ours says: ours is emptied too. That alone mends a small drift (EC2 refills in steps of a second, ours smoothly); when
//! the refusals go on, somebody else takes tokens, and the refill is slowed by a quarter at most once a second, down to
//! an eighth. It recovers by a fortieth of EC2's rate each second.
//!
//! Retries inside the SDK are attempts like any other for EC2. They are not queued again, they are [charged], which may
//! leave a debt.
//!
//! [charged]: Bucket::charge

use std::collections::BTreeSet;
use std::time::Duration;

use crate::time::Moment;

/// Who waits, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A pod waits for its branch.
    PodStart,
    /// A node waits for its trunk.
    NodeInit,
    /// A slot becomes free.
    Release,
    /// A lost branch is replaced.
    Heal,
    /// Inventories and everything that can wait.
    Background,
}

/// EC2's bucket for one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Largest number of tokens.
    pub burst: u32,
    /// Tokens a second.
    pub refill: u32,
}

/// A place in the queue. Given back by being granted or by [`Bucket::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    priority: Priority,
    number: u64,
}

/// What a ticket gets when it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Turn {
    /// The call may be sent; the token is taken and the ticket is used up.
    Granted,
    /// This ticket is next, a token is expected then.
    WaitUntil(Moment),
    /// Another ticket goes first.
    Behind,
}

/// What a bucket shows to a person.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Tokens that are there; negative while in debt.
    pub tokens: f64,
    /// Tokens at most.
    pub capacity: f64,
    /// Tokens a second, as slowed down by refusals.
    pub refill: f64,
    /// Calls that wait for a token.
    pub waiting: usize,
}

/// One token, in the unit of the books: at `refill` tokens a second and a pace in permille, a millisecond brings
/// `refill * pace` units.
const TOKEN: i64 = 1_000_000;
/// Pace in permille of EC2's refill.
const FULL_PACE: i64 = 950;
const SLOWEST_PACE: i64 = FULL_PACE / 8;
/// Recovery of the pace in permille a second.
const RECOVERY: i64 = 25;
/// Refusals closer together than this are one sign.
const ONE_SIGN: Duration = Duration::from_secs(1);
/// After this long without a refusal the next one counts as drift and does not slow the bucket.
const CALM: Duration = Duration::from_secs(30);

/// One action's bucket and its queue. See the module's head.
#[derive(Debug, Clone)]
pub struct Bucket {
    limit: Limit,
    tokens: i64,
    /// In millionths of EC2's refill times 1000, so that recovery by the millisecond loses nothing.
    pace: i64,
    at: Moment,
    refused: Option<Moment>,
    slowed: Option<Moment>,
    waiting: BTreeSet<Ticket>,
    next: u64,
}

impl Bucket {
    /// A full bucket.
    pub fn new(limit: Limit, now: Moment) -> Self {
        Self {
            limit,
            tokens: Self::most(limit),
            pace: FULL_PACE * 1000,
            at: now,
            refused: None,
            slowed: None,
            waiting: BTreeSet::new(),
            next: 0,
        }
    }

    /// Joins the queue.
    pub fn enter(&mut self, priority: Priority) -> Ticket {
        let ticket = Ticket { priority, number: self.next };
        self.next = self.next.saturating_add(1);
        self.waiting.insert(ticket);
        ticket
    }

    /// Leaves the queue without a token.
    pub fn leave(&mut self, ticket: Ticket) {
        self.waiting.remove(&ticket);
    }

    /// Asks for the token. A ticket that is not in the queue (any more) is treated as behind.
    pub fn take(&mut self, ticket: Ticket, now: Moment) -> Turn {
        self.refill(now);
        if self.waiting.first() != Some(&ticket) {
            return Turn::Behind;
        }
        if self.tokens < TOKEN {
            return Turn::WaitUntil(self.ready_at());
        }
        self.tokens -= TOKEN;
        self.waiting.remove(&ticket);
        Turn::Granted
    }

    /// An attempt that was not queued was sent (an SDK retry). At most one burst of debt.
    pub fn charge(&mut self, now: Moment) {
        self.refill(now);
        self.tokens = (self.tokens - TOKEN).max(-Self::most(self.limit));
    }

    /// EC2 refused an attempt for its rate.
    pub fn on_throttle(&mut self, now: Moment) {
        self.refill(now);
        self.tokens = self.tokens.min(0);
        let calm = self.refused.is_none_or(|last| now.has_passed(last, CALM));
        if calm {
            // The first sign: only the level was wrong. Counted as slowed, so that its echoes within a second do not.
            self.slowed = Some(now);
        } else if self.slowed.is_none_or(|last| now.has_passed(last, ONE_SIGN)) {
            self.pace = (self.pace / 4 * 3).max(SLOWEST_PACE * 1000);
            self.slowed = Some(now);
        }
        self.refused = Some(now);
    }

    /// The bucket as it is now.
    pub fn show(&self, now: Moment) -> Level {
        let mut then = self.clone();
        then.refill(now);
        let tokens = |units: i64| {
            let thousandths = i32::try_from(units * 1_000 / TOKEN).unwrap_or(i32::MAX);
            f64::from(thousandths) / 1_000.0
        };
        Level {
            tokens: tokens(then.tokens),
            capacity: tokens(Self::most(then.limit)),
            // A rate is in units a millisecond.
            refill: tokens(then.rate() * 1000),
            waiting: then.waiting.len(),
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Tokens left, rounded down; negative while in debt.
    pub fn level(&self) -> i64 {
        self.tokens.div_euclid(TOKEN)
    }

    /// Whether the refill is slower than it could be.
    pub fn is_slowed(&self) -> bool {
        self.pace < FULL_PACE * 1000
    }

    fn most(limit: Limit) -> i64 {
        i64::from(limit.burst.saturating_sub(1).max(1)) * TOKEN
    }

    fn rate(&self) -> i64 {
        (i64::from(self.limit.refill) * self.pace / 1000).max(1)
    }

    fn refill(&mut self, now: Moment) {
        let elapsed = i64::try_from(now.0.saturating_sub(self.at.0)).unwrap_or(i64::MAX);
        if elapsed == 0 {
            return;
        }
        self.at = now;
        // While the pace recovers, its mean counts; the rest of the time is at full pace.
        let missing = FULL_PACE * 1000 - self.pace;
        let recovering = elapsed.min(missing / RECOVERY);
        let mean = self.pace + RECOVERY * recovering / 2;
        let gained = (mean * recovering)
            .saturating_add((FULL_PACE * 1000).saturating_mul(elapsed - recovering))
            .saturating_mul(i64::from(self.limit.refill))
            / 1000;
        self.tokens = self.tokens.saturating_add(gained).min(Self::most(self.limit));
        let recovered = self.pace.saturating_add(RECOVERY.saturating_mul(elapsed));
        self.pace = recovered.min(FULL_PACE * 1000);
    }

    fn ready_at(&self) -> Moment {
        let missing = (TOKEN - self.tokens).max(0);
        let rate = self.rate();
        let wait = (missing + rate - 1) / rate;
        self.at.plus(Duration::from_millis(u64::try_from(wait).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ASSOCIATE: Limit = Limit { burst: 50, refill: 5 };

    fn bucket() -> Bucket {
        Bucket::new(ASSOCIATE, Moment(0))
    }

    /// Takes one token at or after `now` and returns when it was granted.
    fn wait(bucket: &mut Bucket, mut now: Moment) -> Moment {
        let ticket = bucket.enter(Priority::PodStart);
        loop {
            match bucket.take(ticket, now) {
                Turn::Granted => return now,
                Turn::WaitUntil(at) => {
                    assert!(at > now, "a wait must lead on");
                    now = at;
                }
                Turn::Behind => panic!("alone in the queue"),
            }
        }
    }

    #[test]
    fn the_burst_is_ec2s_less_one_and_then_the_refill_is_95_percent() {
        let mut bucket = bucket();
        let granted: Vec<u64> = (0..80)
            .scan(Moment(0), |now, _| {
                *now = wait(&mut bucket, *now);
                Some(now.0)
            })
            .collect();
        assert_eq!(granted.iter().filter(|at| **at == 0).count(), 49);
        let last = *granted.last().unwrap();
        // 31 tokens at 4.75 a second.
        assert!((6_500..6_600).contains(&last), "{last}");
    }

    #[test]
    fn the_more_urgent_goes_first_and_equals_in_order_of_arrival() {
        let mut bucket = Bucket::new(Limit { burst: 2, refill: 1 }, Moment(0));
        let heal = bucket.enter(Priority::Heal);
        let first = bucket.enter(Priority::PodStart);
        let second = bucket.enter(Priority::PodStart);
        let node = bucket.enter(Priority::NodeInit);
        assert_eq!(bucket.take(heal, Moment(0)), Turn::Behind);
        assert_eq!(bucket.take(second, Moment(0)), Turn::Behind);
        assert_eq!(bucket.take(first, Moment(0)), Turn::Granted);
        assert!(matches!(bucket.take(second, Moment(0)), Turn::WaitUntil(_)));
        bucket.leave(second);
        assert_eq!(bucket.take(heal, Moment(5_000)), Turn::Behind);
        assert_eq!(bucket.take(node, Moment(5_000)), Turn::Granted);
        assert_eq!(bucket.take(node, Moment(9_000)), Turn::Behind);
        assert_eq!(bucket.take(heal, Moment(9_000)), Turn::Granted);
        assert_eq!(bucket.waiting(), 0);
    }

    #[test]
    fn one_refusal_empties_the_bucket_and_does_not_slow_it() {
        let mut bucket = bucket();
        bucket.on_throttle(Moment(0));
        bucket.on_throttle(Moment(400));
        assert_eq!(bucket.level(), 0);
        assert!(!bucket.is_slowed());
    }

    #[test]
    fn s68_lasting_refusals_slow_the_refill_and_it_recovers_to_the_configured_rate() {
        let mut bucket = bucket();
        let mut now = Moment(0);
        for _ in 0..900 {
            bucket.on_throttle(now);
            now = now.plus(Duration::from_secs(1));
        }
        assert!(bucket.is_slowed());
        let slow = wait(&mut bucket, now);
        assert!(slow.since(now) <= Duration::from_secs(2), "never stuck: {slow:?}");
        let later = slow.plus(Duration::from_secs(60));
        for _ in 0..49 {
            wait(&mut bucket, later);
        }
        assert!(!bucket.is_slowed());
        let next = wait(&mut bucket, later);
        assert!(next.since(later) <= Duration::from_millis(211), "{:?}", next.since(later));
    }

    #[test]
    fn s81_a_bucket_shows_what_is_left_and_at_which_rate_it_fills() {
        let mut bucket = bucket();
        for _ in 0..10 {
            wait(&mut bucket, Moment(0));
        }
        bucket.enter(Priority::Heal);
        let shown = bucket.show(Moment(2_000));
        assert_eq!(shown, Level { tokens: 48.5, capacity: 49.0, refill: 4.75, waiting: 1 });
        assert_eq!(bucket.level(), 39, "looking changes nothing");
        for second in 0..10 {
            bucket.on_throttle(Moment(2_000 + second * 1_000));
        }
        let shown = bucket.show(Moment(11_000));
        assert!(shown.tokens == 0.0 && shown.refill < 4.75, "{shown:?}");
    }

    #[test]
    fn retries_that_were_not_queued_leave_a_bounded_debt() {
        let mut bucket = bucket();
        for _ in 0..1_000 {
            bucket.charge(Moment(0));
        }
        assert_eq!(bucket.level(), -49);
        assert!(wait(&mut bucket, Moment(0)) <= Moment(11_000));
    }

    #[test]
    fn a_clock_that_jumps_back_or_far_ahead_is_survived() {
        let mut bucket = bucket();
        wait(&mut bucket, Moment(10_000));
        wait(&mut bucket, Moment(0));
        wait(&mut bucket, Moment(u64::MAX));
        assert!(bucket.level() <= 49);
    }

    proptest! {
        /// Whatever the pattern of arrivals: in no window more is granted than EC2's bucket holds and refills.
        #[test]
        fn no_window_grants_more_than_ec2_allows(gaps in prop::collection::vec(0u64..2_000, 1..200)) {
            let mut bucket = bucket();
            let mut now = Moment(0);
            let mut granted = Vec::new();
            for gap in gaps {
                now = wait(&mut bucket, Moment(now.0 + gap));
                granted.push(now.0);
            }
            for (i, from) in granted.iter().enumerate() {
                for (j, to) in granted.iter().enumerate().skip(i) {
                    let granted = (j - i + 1) as u64;
                    prop_assert!(granted * 1_000 <= 50_000 + 5 * (to - from), "{from}..{to}");
                }
            }
        }
    }
}
