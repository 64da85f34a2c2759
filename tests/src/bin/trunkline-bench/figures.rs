//! Numbers: percentiles, and what the kernel says about a process.

use trunkline_tests::{Error, Result};

/// The value below which `percent` of the sorted values are (nearest rank).
pub(crate) fn percentile(sorted: &[i64], percent: usize) -> i64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Prints the spread of some times.
pub(crate) fn spread(what: &str, mut times: Vec<i64>) {
    times.sort_unstable();
    let (p50, p90, p99) = (percentile(&times, 50), percentile(&times, 90), percentile(&times, 99));
    let max = times.last().copied().unwrap_or_default();
    println!("  {what}: n {}, p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, max {max} ms", times.len());
}

/// Resident memory of a process in KiB.
pub(crate) fn resident(id: u32) -> Result<u64> {
    let text = read(id, "status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let figure = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    figure.ok_or_else(|| Error::say(format!("no VmRSS of process {id}")))
}

/// CPU time of a process so far, in clock ticks of 10 ms.
pub(crate) fn ticks(id: u32) -> Result<u64> {
    let text = read(id, "stat")?;
    // The name in parentheses may hold spaces; the fields after it do not.
    let fields: Vec<_> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |number: usize| fields.get(number).and_then(|text| text.parse::<u64>().ok());
    field(11)
        .zip(field(12))
        .map(|(user, system)| user + system)
        .ok_or_else(|| Error::say("an odd /proc/PID/stat"))
}

fn read(id: u32, what: &str) -> Result<String> {
    let path = format!("/proc/{id}/{what}");
    std::fs::read_to_string(&path).map_err(Error::file(path.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let times: Vec<i64> = (1..=100).collect();
        assert_eq!(
            (percentile(&times, 50), percentile(&times, 99), percentile(&times, 100)),
            (50, 99, 100)
        );
        assert_eq!((percentile(&[7], 50), percentile(&[], 50)), (7, 0));
    }
}
