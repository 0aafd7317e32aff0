//! A layer: the shape of a convolution. A fully connected layer is one whose filter covers its whole input.

/// The shape of a convolution. The papers' letters stand beside the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// What it is called.
    pub name: String,
    /// C: input channels, of all groups.
    pub channels: usize,
    /// M: filters, of all groups.
    pub filters: usize,
    /// R: rows of a filter.
    pub filter_height: usize,
    /// S: columns of a filter.
    pub filter_width: usize,
    /// U: how far a filter moves.
    pub stride: usize,
    /// Zeros on each side of the input.
    pub padding: usize,
    /// Into how many groups channels and filters are divided.
    pub groups: usize,
    /// H: rows of the input, without padding.
    pub height: usize,
    /// W: columns of the input, without padding.
    pub width: usize,
    /// Whether it is fully connected.
    pub fully_connected: bool,
}

/// A layer that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer}: {problem}")]
pub struct LayerError {
    /// Its name.
    pub layer: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Larger sizes are mistakes, and products of them would overflow.
const MOST: usize = 1 << 16;

impl Layer {
    /// A convolution with a square filter on a square input; stride 1, one group.
    pub fn convolution(
        name: &str,
        channels: usize,
        size: usize,
        filters: usize,
        filter: usize,
        padding: usize,
    ) -> Self {
        Self {
            name: name.to_owned(),
            channels,
            filters,
            filter_height: filter,
            filter_width: filter,
            stride: 1,
            padding,
            groups: 1,
            height: size,
            width: size,
            fully_connected: false,
        }
    }

    /// A fully connected layer on `channels` maps of `size` x `size`.
    pub fn linear(name: &str, channels: usize, size: usize, filters: usize) -> Self {
        Self { fully_connected: true, ..Self::convolution(name, channels, size, filters, size, 0) }
    }

    /// The same with another stride.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The same in groups.
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// Whether there can be such a layer.
    pub fn validate(&self) -> Result<(), LayerError> {
        let error = |problem| Err(LayerError { layer: self.name.clone(), problem });
        for (what, size) in [
            ("channels", self.channels),
            ("filters", self.filters),
            ("filter rows", self.filter_height),
            ("filter columns", self.filter_width),
            ("stride", self.stride),
            ("groups", self.groups),
            ("input rows", self.height),
            ("input columns", self.width),
            ("padding", self.padding.max(1)),
        ] {
            if size == 0 || size > MOST {
                return error(format!("{what}: {size} is not between 1 and {MOST}"));
            }
        }
        let (rows, columns) = (self.height + 2 * self.padding, self.width + 2 * self.padding);
        if self.filter_height > rows || self.filter_width > columns {
            let filter = format!("{}x{}", self.filter_height, self.filter_width);
            return error(format!("a filter of {filter} is larger than its padded input of {rows}x{columns}"));
        }
        if !self.channels.is_multiple_of(self.groups) || !self.filters.is_multiple_of(self.groups) {
            let (channels, filters) = (self.channels, self.filters);
            return error(format!(
                "{channels} channels and {filters} filters do not divide into {} groups",
                self.groups
            ));
        }
        Ok(())
    }

    /// E: rows of the output.
    pub fn output_height(&self) -> usize {
        (self.height + 2 * self.padding - self.filter_height) / self.stride + 1
    }

    /// F: columns of the output.
    pub fn output_width(&self) -> usize {
        (self.width + 2 * self.padding - self.filter_width) / self.stride + 1
    }

    /// Input channels of a group, which is what a filter has.
    pub fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Filters of a group.
    pub fn group_filters(&self) -> usize {
        self.filters / self.groups
    }

    /// Multiply-accumulates for a batch, those with padding included.
    pub fn macs(&self, batch: usize) -> u64 {
        [batch, self.filters, self.group_channels(), self.filter_height, self.filter_width, self.outputs()]
            .into_iter()
            .map(|size| size as u64)
            .product()
    }

    /// Pixels of one output channel.
    pub fn outputs(&self) -> usize {
        self.output_height() * self.output_width()
    }

    /// Words of all filters.
    pub fn filter_words(&self) -> usize {
        self.filters * self.group_channels() * self.filter_height * self.filter_width
    }

    /// Rows of the padded input that `outputs` rows of the output need.
    pub fn input_rows(&self, outputs: usize) -> usize {
        span(outputs, self.filter_height, self.stride)
    }

    /// Columns of the padded input that all columns of the output need.
    pub fn input_columns(&self) -> usize {
        span(self.output_width(), self.filter_width, self.stride)
    }

    /// Of these rows, those that are no padding; the output rows begin at `first`.
    pub fn real_rows(&self, first: usize, outputs: usize) -> usize {
        real(first, outputs, self.filter_height, self.stride, self.padding, self.height)
    }

    /// Of the columns, those that are no padding.
    pub fn real_columns(&self) -> usize {
        real(0, self.output_width(), self.filter_width, self.stride, self.padding, self.width)
    }

    /// One line: `96 filters of 3x11x11, stride 4, on 227x227`.
    pub fn describe(&self) -> String {
        let Self { filters, filter_height, filter_width, height, width, .. } = self;
        if self.fully_connected {
            return format!("{} inputs, {filters} outputs", self.channels * height * width);
        }
        let mut text = format!("{filters} filters of {}x{filter_height}x{filter_width}", self.group_channels());
        if self.stride != 1 {
            text += &format!(", stride {}", self.stride);
        }
        if self.groups != 1 {
            text += &format!(", {} groups", self.groups);
        }
        text += &format!(", on {height}x{width}");
        if self.padding != 0 {
            text += &format!(" padded by {}", self.padding);
        }
        text
    }
}

/// How many different places `outputs` windows touch along one dimension.
fn span(outputs: usize, filter: usize, stride: usize) -> usize {
    if stride >= filter { outputs * filter } else { (outputs - 1) * stride + filter }
}

/// Of these, those inside an input of `size` that begins after the padding.
fn real(first: usize, outputs: usize, filter: usize, stride: usize, padding: usize, size: usize) -> usize {
    let inside = |place: usize| (padding..padding + size).contains(&place);
    let windows = first..first + outputs;
    if stride >= filter {
        windows.map(|at| (0..filter).filter(|tap| inside(at * stride + tap)).count()).sum()
    } else {
        let (start, end) = (first * stride, (first + outputs - 1) * stride + filter);
        end.min(padding + size).saturating_sub(start.max(padding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alexnets_second_layer_has_the_published_size() {
        let layer = Layer::convolution("CONV2", 96, 27, 256, 5, 2).groups(2);
        layer.validate().unwrap();
        assert_eq!((layer.output_height(), layer.input_rows(27), layer.real_rows(0, 27)), (27, 31, 27));
        assert_eq!(layer.macs(4), 895_795_200);
    }

    #[test]
    fn places_are_counted_as_if_one_by_one() {
        for (outputs, filter, stride, padding, size) in
            [(4, 3, 1, 1, 4), (3, 1, 2, 0, 5), (2, 3, 2, 1, 4), (2, 2, 5, 3, 3), (5, 3, 3, 2, 12)]
        {
            for first in 0..3 {
                let mut places: Vec<usize> =
                    (first..first + outputs).flat_map(|at| (0..filter).map(move |tap| at * stride + tap)).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(span(outputs, filter, stride), places.len());
                let inside = places.iter().filter(|&&at| (padding..padding + size).contains(&at)).count();
                assert_eq!(real(first, outputs, filter, stride, padding, size), inside);
            }
        }
    }

    #[test]
    fn layers_that_cannot_be_are_refused_by_name() {
        let good = Layer::convolution("conv", 4, 5, 6, 3, 0);
        for (layer, problem) in [
            (Layer { filters: 0, ..good.clone() }, "filters: 0 is not between 1 and 65536"),
            (Layer { stride: 0, ..good.clone() }, "stride: 0 is not between 1 and 65536"),
            (Layer { filter_width: 6, ..good.clone() }, "a filter of 3x6 is larger than its padded input of 5x5"),
            (good.clone().groups(3), "4 channels and 6 filters do not divide into 3 groups"),
        ] {
            assert_eq!(layer.validate().unwrap_err().to_string(), format!("layer conv: {problem}"));
        }
    }
}
