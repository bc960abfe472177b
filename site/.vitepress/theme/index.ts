import DefaultTheme from 'vitepress/theme';
import './wide-tables.css';

export default DefaultTheme;
