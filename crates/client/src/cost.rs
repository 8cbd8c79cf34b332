//! The use of resources by a job, and its cost at given prices.

use honeycomb_types::TierClass;
use honeycomb_wire::messages::JobBill;

/// The prices if none are given, in the form that `Prices::parse` reads.
pub const PRICES: &str =
    "memory=0.008,nvme=0.0001,ssd=0.0001,hdd=0.00006,object=0.00003,to-object=0.005";

/// Names of prices, and their units.
const NAMES: &str = "memory, nvme, ssd, hdd, object (a gigabyte in this tier for an hour), \
                     to-memory, to-nvme, to-ssd, to-hdd, to-object (a gigabyte demoted or \
                     promoted to this tier), moved (a gigabyte moved to another server)";

/// Bytes of a gigabyte, times milliseconds of a second.
const GB_SECOND: f64 = 1e9 * 1e3;

/// Memory, and the classes of tiers, by their codes.
pub const TIERS: usize = TierClass::ALL.len() + 1;

/// The name of the tier with this code.
pub fn tier_name(code: usize) -> &'static str {
    let class = u8::try_from(code).ok().and_then(TierClass::from_code);
    class.map_or("memory", TierClass::name)
}

/// Prices in any unit of money.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Price of a gigabyte for an hour, by tier.
    there: [f64; TIERS],
    /// Price of a gigabyte demoted or promoted, by target tier.
    came: [f64; TIERS],
    /// Price of a gigabyte moved to another server.
    moved: f64,
}

impl Prices {
    /// Parses `memory=0.008,nvme=0.0001`. Other prices are 0; the price of memory is required.
    pub fn parse(text: &str) -> Result<Prices, String> {
        let mut prices = Prices { there: [0.0; TIERS], came: [0.0; TIERS], moved: 0.0 };
        let mut memory = false;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, price) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is not NAME=PRICE, such as memory=0.008"))?;
            let price = match price.trim().parse::<f64>() {
                Ok(price) if price.is_finite() && price >= 0.0 => price,
                _ => return Err(format!("the price '{price}' is not a number from 0 up")),
            };
            let name = name.trim();
            let (tier, prices_of) = match name.strip_prefix("to-") {
                Some(tier) => (tier, &mut prices.came),
                None => (name, &mut prices.there),
            };
            if name == "moved" {
                prices.moved = price;
                continue;
            }
            let Some(code) = (0..TIERS).find(|&code| tier_name(code) == tier) else {
                return Err(format!("unknown price '{name}'; the prices are: {NAMES}"));
            };
            prices_of[code] = price;
            memory |= name == "memory";
        }
        match memory {
            true => Ok(prices),
            false => Err("the price of memory is missing; add one such as memory=0.008".to_owned()),
        }
    }

    /// The cost of gigabyte-seconds in a tier.
    fn there(&self, tier: usize, gb_seconds: f64) -> f64 {
        self.there[tier] * gb_seconds / 3600.0
    }

    /// The cost of bytes demoted or promoted to a tier.
    fn came(&self, tier: usize, bytes: u64) -> f64 {
        self.came[tier] * bytes as f64 / 1e9
    }

    /// The cost of bytes moved to other servers.
    fn moved(&self, bytes: u64) -> f64 {
        self.moved * bytes as f64 / 1e9
    }

    /// Each price with its name: first those of a tier, with the `to-` price of the same tier, last `moved`.
    pub fn named(&self) -> Vec<(String, f64)> {
        let tiers = (0..TIERS).flat_map(|code| {
            let name = tier_name(code);
            [(name.to_owned(), self.there[code]), (format!("to-{name}"), self.came[code])]
        });
        tiers.chain([("moved".to_owned(), self.moved)]).collect()
    }
}

/// Use and cost of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TierCost {
    /// Gigabyte-seconds of whole blocks.
    pub gb_seconds: f64,
    /// Gigabyte-seconds of the data in the blocks, as servers reported them.
    pub used_gb_seconds: f64,
    /// Bytes demoted or promoted to this tier.
    pub came_bytes: u64,
    /// The cost of both.
    pub money: f64,
}

/// Use and cost of one or more bills.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// By the code of the tier; `tier_name` names it.
    pub tiers: [TierCost; TIERS],
    /// Bytes moved from one server to another.
    pub moved_bytes: u64,
    /// The total cost.
    pub money: f64,
    /// The cost of the peak use, if it had been reserved in memory for the whole lifetime of each job.
    pub money_at_peak: f64,
}

impl Cost {
    /// The cost of a bill. A tier class that this program does not know has no price.
    pub fn of(bill: &JobBill, prices: &Prices) -> Cost {
        let mut cost = Cost { moved_bytes: bill.moved_bytes, ..Cost::default() };
        for tier in &bill.tiers {
            let code = usize::from(tier.tier);
            let Some(own) = cost.tiers.get_mut(code) else { continue };
            let gb_seconds = tier.held_byte_ms as f64 / GB_SECOND;
            own.gb_seconds += gb_seconds;
            own.used_gb_seconds += tier.used_byte_ms as f64 / GB_SECOND;
            own.came_bytes += tier.came_bytes;
            own.money += prices.there(code, gb_seconds) + prices.came(code, tier.came_bytes);
        }
        let reserved = bill.peak_bytes as f64 * bill.age_ms as f64 / GB_SECOND;
        cost.money = cost.tiers.iter().map(|tier| tier.money).sum::<f64>();
        cost.money += prices.moved(bill.moved_bytes);
        cost.money_at_peak = prices.there(0, reserved);
        cost
    }

    /// The sum over several bills.
    pub fn sum(bills: &[JobBill], prices: &Prices) -> Cost {
        let mut sum = Cost::default();
        for cost in bills.iter().map(|bill| Cost::of(bill, prices)) {
            for (sum, tier) in sum.tiers.iter_mut().zip(cost.tiers) {
                sum.gb_seconds += tier.gb_seconds;
                sum.used_gb_seconds += tier.used_gb_seconds;
                sum.came_bytes = sum.came_bytes.saturating_add(tier.came_bytes);
                sum.money += tier.money;
            }
            sum.moved_bytes = sum.moved_bytes.saturating_add(cost.moved_bytes);
            sum.money += cost.money;
            sum.money_at_peak += cost.money_at_peak;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_wrong_ones_refused() {
        let prices = Prices::parse("memory = 3.6").unwrap();
        assert!((prices.there(0, 1000.0) - 1.0).abs() < 1e-12);
        assert!(prices.there(1, 1000.0).abs() < 1e-12, "a price that is not named must be 0");
        let prices = Prices::parse("memory=0, moved=2, hdd=7.2, to-object=3").unwrap();
        assert!((prices.moved(500_000_000) - 1.0).abs() < 1e-12);
        assert!((prices.there(3, 1000.0) - 2.0).abs() < 1e-12);
        assert!((prices.came(4, 2_000_000_000) - 6.0).abs() < 1e-12);
        assert!(prices.named().contains(&("to-object".to_owned(), 3.0)));
        let wrong = ["", "memory", "memory=-1", "memory=much", "memory=1,gold=1", "memory=inf"];
        for wrong in wrong.into_iter().chain(["memory=1,to-gold=1", "nvme=1", "to-memory=1"]) {
            assert!(Prices::parse(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
