//! The amount of intermediate data over time.

/// Shortest time in which data is written or dropped, in seconds: nothing is instantaneous.
const STEP_MIN: f64 = 1e-3;

/// The intermediate data of one task: written, held, then read and dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    /// Tenant of the task.
    pub tenant: u32,
    /// Time when it begins to write, in seconds from the start of the window.
    pub start: f64,
    /// Seconds of writing.
    pub grow: f64,
    /// Seconds for which all data exists.
    pub hold: f64,
    /// Seconds of reading and dropping.
    pub shrink: f64,
    /// Bytes of all data.
    pub bytes: f64,
}

impl Task {
    /// The time when the last byte is dropped.
    pub fn end(&self) -> f64 {
        self.start + self.grow + self.hold + self.shrink
    }

    /// Bytes at a time.
    pub fn level(&self, at: f64) -> f64 {
        let since = at - self.start;
        if since <= 0.0 || at >= self.end() {
            0.0
        } else if since < self.grow {
            self.bytes * since / self.grow
        } else {
            self.bytes * ((self.end() - at) / self.shrink).min(1.0)
        }
    }
}

/// Peak and mean over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Peak bytes.
    pub peak: f64,
    /// Time of the peak, in seconds.
    pub peak_at: f64,
    /// Mean bytes over the window.
    pub mean: f64,
}

impl Profile {
    /// Mean over peak: the utilisation of a reservation of the peak.
    pub fn utilisation(&self) -> f64 {
        if self.peak > 0.0 { self.mean / self.peak } else { 0.0 }
    }
}

/// The intermediate data of tenants over a window of time.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Length of the window, in seconds.
    pub window: f64,
    /// Number of tenants.
    pub tenants: u32,
    /// Tasks, sorted by start.
    pub tasks: Vec<Task>,
    /// Description of the source, for reports.
    pub source: String,
}

impl Demand {
    /// A demand of tasks in any order. Parts of tasks outside the window are cut off.
    pub fn new(window: f64, tenants: u32, tasks: Vec<Task>, source: String) -> Demand {
        let within = |task: Task| {
            let task = Task {
                grow: task.grow.max(STEP_MIN),
                hold: task.hold.max(0.0),
                shrink: task.shrink.max(STEP_MIN),
                ..task
            };
            cut(task, window)
        };
        let mut tasks: Vec<Task> = tasks.into_iter().filter_map(within).collect();
        tasks.sort_by(|a, b| a.start.total_cmp(&b.start));
        Demand { window, tenants, tasks, source }
    }

    /// Bytes of all tenants at a time.
    pub fn level(&self, at: f64) -> f64 {
        self.tasks.iter().map(|task| task.level(at)).sum()
    }

    /// The profile of all tenants together.
    pub fn profile(&self) -> Profile {
        profile(self.window, self.tasks.iter())
    }

    /// The profile of one tenant.
    pub fn tenant(&self, tenant: u32) -> Profile {
        profile(self.window, self.tasks.iter().filter(|task| task.tenant == tenant))
    }

    /// The same shape over `seconds`, with a peak of `peak` bytes.
    pub fn scaled(&self, seconds: f64, peak: u64) -> Demand {
        let time = seconds / self.window;
        let bytes = peak as f64 / self.profile().peak.max(1.0);
        let scale = |task: &Task| Task {
            tenant: task.tenant,
            start: task.start * time,
            grow: task.grow * time,
            hold: task.hold * time,
            shrink: task.shrink * time,
            bytes: task.bytes * bytes,
        };
        let tasks = self.tasks.iter().map(scale).collect();
        Demand { window: seconds, tenants: self.tenants, tasks, source: self.source.clone() }
    }
}

/// The part of a task within the window; its data is dropped at the end of the window.
fn cut(task: Task, window: f64) -> Option<Task> {
    if task.end() <= 0.0 || task.start >= window || task.bytes <= 0.0 {
        return None;
    }
    let (mut task, over) = (task, task.end() - window);
    if task.start < 0.0 {
        let gone = (-task.start).min(task.grow - STEP_MIN);
        (task.start, task.grow) = (0.0, task.grow - gone);
    }
    if over > 0.0 {
        // Shortened from its end backwards: the shrinking first, then the holding.
        let left = (window - task.start).max(STEP_MIN * 2.0);
        task.grow = task.grow.min(left - STEP_MIN);
        task.shrink = task.shrink.min(left - task.grow);
        task.hold = (left - task.grow - task.shrink).max(0.0);
    }
    Some(task)
}

/// Sweeps over the times at which a slope changes; between them, the level is linear.
fn profile<'a>(window: f64, tasks: impl Iterator<Item = &'a Task>) -> Profile {
    let mut turns: Vec<(f64, f64)> = Vec::new();
    for task in tasks {
        let (up, down) = (task.bytes / task.grow, task.bytes / task.shrink);
        turns.push((task.start, up));
        turns.push((task.start + task.grow, -up));
        turns.push((task.end() - task.shrink, -down));
        turns.push((task.end(), down));
    }
    turns.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut found = Profile { peak: 0.0, peak_at: 0.0, mean: 0.0 };
    let (mut at, mut level, mut slope, mut area) = (0.0, 0.0f64, 0.0, 0.0);
    for (turn, change) in turns {
        let next = level + slope * (turn - at);
        area += (level + next) / 2.0 * (turn - at);
        (at, level, slope) = (turn, next, slope + change);
        if level > found.peak {
            (found.peak, found.peak_at) = (level, at);
        }
    }
    found.mean = area / window;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(start: f64, grow: f64, hold: f64, shrink: f64, bytes: f64) -> Task {
        Task { tenant: 0, start, grow, hold, shrink, bytes }
    }

    #[test]
    fn a_task_grows_holds_and_shrinks() {
        let one = task(10.0, 2.0, 4.0, 2.0, 100.0);
        for (at, level) in
            [(0.0, 0.0), (10.0, 0.0), (11.0, 50.0), (13.0, 100.0), (17.0, 50.0), (18.0, 0.0)]
        {
            assert_eq!(one.level(at), level, "at {at}");
        }
        let demand = Demand::new(100.0, 1, vec![one], "a test".into());
        let profile = demand.profile();
        assert_eq!((profile.peak, profile.peak_at), (100.0, 12.0));
        assert!((profile.mean - 6.0).abs() < 1e-9, "{profile:?}: 6 s of 100 bytes in 100 s");
        let half = demand.scaled(50.0, 200).profile();
        assert!((half.peak - 200.0).abs() < 1e-6 && (half.mean - 12.0).abs() < 1e-6, "{half:?}");
    }

    #[test]
    fn the_profile_is_that_of_the_levels() {
        let tasks = vec![
            task(0.0, 10.0, 20.0, 5.0, 70.0),
            task(8.0, 1.0, 3.0, 2.0, 500.0),
            task(9.0, 4.0, 30.0, 9.0, 90.0),
            task(-5.0, 10.0, 2.0, 1.0, 60.0),
            task(55.0, 3.0, 10.0, 1.0, 40.0),
        ];
        let demand = Demand::new(60.0, 1, tasks, "a test".into());
        let steps = 600_000;
        let at = |i: usize| demand.level(i as f64 * 60.0 / steps as f64);
        let levels: Vec<f64> = (0..steps).map(at).collect();
        let (peak, sum) = levels.iter().fold((0.0f64, 0.0), |(p, s), l| (p.max(*l), s + l));
        let profile = demand.profile();
        assert!((profile.peak / peak - 1.0).abs() < 1e-3, "{profile:?} {peak}");
        assert!((profile.mean / (sum / steps as f64) - 1.0).abs() < 1e-3, "{profile:?}");
        assert!(demand.tasks.iter().all(|t| t.start >= 0.0 && t.end() <= 60.0 + 1e-6));
    }
}
